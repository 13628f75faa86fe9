"""`keel compare` on the command line: a table, JSON, and errors that name flags."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import keel
from keel.cli import main
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    rows = [
        f"the {'sailor paints boat' if n % 2 else 'baker serves cake'} number {n}\t{'sea' if n % 2 else 'food'}"
        for n in range(60)
    ]
    (folder / "train.tsv").write_text("\n".join(["text\tlabel", *rows[:40]]) + "\n")
    (folder / "test.tsv").write_text("\n".join(["text\tlabel", *rows[40:]]) + "\n")
    (folder / "other.tsv").write_text("text\tlabel\na film\tsea\na walk\tland\n")
    (folder / "plain.txt").write_text("a film\na walk\n")
    (folder / "vectors.txt").write_text(
        "".join(f"{word} {n} 0.5 {-n}\n" for n, word in enumerate(["the", "boat", "cake"]))
    )
    return folder


def test_a_table_a_report_and_json(texts: Path, tmp_path: Path, run: Run) -> None:
    files = ["--train", texts / "train.tsv", "--test", texts / "test.tsv", "--seeds", "2", "--out", tmp_path / "out"]
    code, out, err = run("compare", "onehot", texts / "vectors.txt", *files)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].split()[0].endswith("/test")
    assert {line.split()[0] for line in lines[1:3]} == {"onehot", "vectors.txt"}
    assert lines[-1] == f"report: {tmp_path / 'out' / 'report.html'}"
    assert "[4/4]" in err
    code, out, err = run("compare", "onehot", texts / "vectors.txt", *files, "--json")
    found = json.loads(out)
    assert code == 0
    assert [cell["row"] for cell in found["cells"]] == ["onehot", "vectors.txt"]
    assert found["tests"][0]["verdict"] in ("decided", "not decided")
    assert "4 of 4 cells are stored" in err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["onehot", "--train", "train.tsv", "--out", "out"], ["--test is missing"]),
        (["onehot", "--train", "train.tsv", "--test", "test.tsv"], ["--out is missing"]),
        (["bert", "--train", "train.tsv", "--test", "test.tsv", "--out", "out"], ["bert", "--corpus"]),
        (["onhot", "--train", "train.tsv", "--test", "test.tsv", "--out", "out"], ["'onehot'"]),
        (["onehot", "--train", "train.tsv", "--test", "other.tsv", "--out", "out"], ["other.tsv", "'land'"]),
        (["onehot", "--train", "train.tsv", "--test", "test.tsv", "--test", "test.tsv", "--out", "out"], ["--train"]),
        (
            ["onehot", "--train", "train.tsv", "--test", "test.tsv", "--train-sizes", "x", "--out", "o"],
            ["--train-sizes"],
        ),
    ],
)
def test_mistakes_cost_no_compute(
    texts: Path,
    run: Run,
    refused: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(texts)
    refused(run("compare", *words), 2, *parts)
    assert not (texts / "out").exists()


def test_a_test_file_without_labels_is_refused(
    texts: Path, run: Run, refused: Callable[..., None], tmp_path: Path
) -> None:
    files = ["--train", texts / "train.tsv", "--test", texts / "plain.txt", "--out", tmp_path / "out"]
    refused(run("compare", "onehot", *files), 1, "plain.txt", "label")


def test_the_reason_of_a_failed_cell_names_flags(run: Run, tmp_path: Path) -> None:
    rows = [{"context": f"Anna lives in house {n}.", "question": "Who?", "answers": "Anna"} for n in range(4)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    files = ["--train", tmp_path / "questions.jsonl", "--test", tmp_path / "questions.jsonl"]
    code, printed, _ = run("compare", "onehot", *files, "--task", "answer", "--seeds", "1", "--out", tmp_path / "out")
    assert code == 1
    assert "--task answer needs" in printed


def test_a_failed_cell_is_in_the_exit_code_and_the_others_are_scored(texts: Path, tmp_path: Path, run: Run) -> None:
    broken = tmp_path / "broken"
    keel.finetune(keel.Cnn(width=4, filters=2), texts / "train.tsv", dev=None, epochs=1, out=broken, progress=False)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    files = ["--train", texts / "train.tsv", "--test", texts / "test.tsv", "--seeds", "1", "--out", tmp_path / "out"]
    code, out, _ = run("compare", "onehot", broken, *files)
    assert code == 1
    assert any(line.startswith("onehot ") for line in out.splitlines())
    assert out.splitlines()[-1] == "1 of 2 cells failed: rerun the command to retry"
    code, out, _ = run("compare", "onehot", broken, *files, "--json")
    assert code == 1
    assert [bool(cell.get("error")) for cell in json.loads(out)["cells"]] == [False, True]


def test_the_help_names_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "exit code is 1 if a cell failed" in " ".join(capsys.readouterr().out.split())
