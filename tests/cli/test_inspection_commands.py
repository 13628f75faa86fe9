"""The commands that look inside a model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
TEXT = "the baker paints a boat"


def test_attention_prints_shares_heads_and_pairs(run: Run, folder: Path) -> None:
    base = folder / "base"
    code, out, err = run("attention", "the sailor paints a boat", "--model", base)
    assert code == 0, err
    assert "[CLS]" in out
    assert "[SEP]" in out
    code, out, _ = run("attention", "the sailor paints a boat", "--model", base, "--head", "1", "--merge")
    assert code == 0
    assert "sailor" in out
    words = ("attention", "the sailor paints a boat", "--model", base, "--from", "sailor", "--to", "boat")
    code, out, _ = run(*words, "--json")
    data = json.loads(out)
    assert (data["from"], data["to"]) == ("sailor", "boat")
    assert len(data["between"]) == len(data["layers"]) == 1
    assert len(data["weights"][0][0]) == len(data["queries"])


def test_attention_of_a_pair_and_of_a_file(run: Run, folder: Path, tmp_path: Path) -> None:
    base = folder / "base"
    (tmp_path / "text.txt").write_text("the sailor")
    code, out, _ = run("attention", tmp_path / "text.txt", "a boat", "--model", base, "--json", "--merge", "words")
    assert code == 0
    assert json.loads(out)["keys"] == ["[CLS]", "the", "sailor", "[SEP]", "a", "boat", "[SEP]"]


def test_attention_writes_figures(run: Run, folder: Path, tmp_path: Path) -> None:
    for name in ("a.svg", "a.html"):
        code, _, err = run("attention", "the sailor", "--model", folder / "base", "--out", tmp_path / name)
        assert code == 0
        assert name in err
        assert "sailor" in (tmp_path / name).read_text() or name == "a.svg"


def test_attention_of_a_seq2seq_model(run: Run, desk: Path) -> None:
    code, out, err = run("attention", "boat 1", "Boot 1", "--model", desk / "ende", "--json")
    assert code == 0, err
    assert json.loads(out)["kind"] == "cross"
    code, out, err = run("attention", "boat 1", "--model", desk / "ende", "--kind", "encoder")
    assert code == 0, err


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--layer", "9"], "layer 9"),
        (["--head", "9"], "head 9"),
        (["--from", "cat"], "--from"),
        (["--out", "a.gif"], ".svg"),
        (["--kind", "cross"], "--kind"),
        (["--merge", "all"], "--merge"),
    ],
)
def test_wrong_requests_are_refused(
    run: Run, folder: Path, refused: Callable[..., None], flags: list[str], part: str
) -> None:
    result = run("attention", "the sailor", "--model", folder / "base", *flags)
    refused(result, 1 if flags[0] == "--from" else 2, part)


def test_a_model_without_attention_is_refused(run: Run, ngram: Path, refused: Callable[..., None]) -> None:
    refused(run("attention", "the sailor", "--model", ngram), 2, "no self-attention")


def test_explain_prints_signed_bars_and_writes_figures(run: Run, folder: Path, tmp_path: Path) -> None:
    for by in ("gradients", "occlusion"):
        for name in ("why.svg", "why.html"):
            code, out, err = run(
                "explain", TEXT, "--model", folder / "tuned", "--by", by, "--steps", "8", "--out", tmp_path / name
            )
            assert code == 0, err
            assert [line.split()[0] for line in out.splitlines() if "|" in line] == TEXT.split()
            assert ("completeness error" in out) == (by == "gradients")
            assert "passes of" in out
            assert "\x1b" not in out  # no colours where the output is no terminal
            assert "baker" in (tmp_path / name).read_text(encoding="utf-8")


def test_explain_as_json(run: Run, folder: Path) -> None:
    code, out, err = run("explain", TEXT, "--model", folder / "tuned", "--label", "sea", "--curves", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["prediction"] == "sea"
    assert [word["word"] for word in found["words"]] == TEXT.split()
    assert sum(word["attribution"] for word in found["words"]) == pytest.approx(found["sum"])
    assert found["completeness_error"] < 0.02
    assert found["curves"]["random_areas"]["orders"] == 20


def test_explain_reads_stdin(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{TEXT}\n".encode())))
    code, out, err = run("explain", "-", "--model", folder / "tuned", "--json")
    assert code == 0, err
    assert json.loads(out)["texts"] == {"text": TEXT}


def test_colours_on_a_terminal(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[30;48;5;" in run("explain", TEXT, "--model", folder / "tuned", "--steps", "8")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("explain", TEXT, "--model", folder / "tuned", "--steps", "8")[1]


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        ((), 2, "--model"),
        (("--model", "base"), 2, "fine-tune"),
        (("second", "--model", "tuned"), 2, "one text"),
        (("--model", "tuned", "--word", "boat"), 2, "--word"),
        (("--model", "tuned", "--label", "air"), 2, "'food', 'sea'"),
        (("--model", "tuned", "--out", "why.gif"), 2, ".svg"),
        (("--model", "tuned", "--steps", "0"), 2, "--steps"),
    ],
)
def test_explain_refuses_in_one_sentence(
    words: tuple[str, ...], code: int, part: str, run: Run, folder: Path, refused: Callable[..., None]
) -> None:
    given = [folder / word if word in ("base", "tuned") else word for word in words]
    refused(run("explain", TEXT, *given), code, part)


def write_tags(path: Path, words: str = "the sailor paints a boat") -> Path:
    tags = {"the": "DET", "a": "DET", "paints": "VERB"}
    sentence = "\n".join(f"{word}\t{tags.get(word, 'NOUN')}\t{word[0]}" for word in words.split())
    path.write_text(f"{sentence}\n\n" * 20)
    return path


def test_layers_are_probed(run: Run, folder: Path, tmp_path: Path) -> None:
    data, out = write_tags(tmp_path / "tags.txt"), tmp_path / "curves.html"
    words = ["layers", folder / "base", "--train", data, "--test", data, "--probe", "pos=2"]
    code, printed, err = run(*words, "--control", "--random", "--out", out)
    assert code == 0, err
    assert out.exists()
    assert "curves.html" in err
    assert "selectivity" in printed
    assert "random weights" in printed
    assert max(map(len, printed.splitlines())) <= 80 or "pos: best" in printed
    code, printed, _ = run(*words, "--json", "--quiet")
    (task,) = json.loads(printed)["tasks"]
    assert (task["task"], task["classes"], task["layers"]) == ("pos", 3, [0, 1])
    assert task["scores"][0]["value"] == 1.0
    assert task["control"] is task["random"] is None
    assert run(*words, "--json", "--quiet")[1] == printed


def test_several_files_are_probed_with_a_name_each(run: Run, folder: Path, tmp_path: Path) -> None:
    one, two = (write_tags(tmp_path / name) for name in ("one.txt", "two.txt"))
    files = ["--train", one, "--test", one, "--train", two, "--test", two]
    code, printed, err = run("layers", folder / "base", *files, "--probe", "pos=2,3", "--json")
    assert code == 0, err
    names = [task["task"] for task in json.loads(printed)["tasks"]]
    assert names == ["pos", "column 3", f"pos ({two})", f"column 3 ({two})"]


def test_mixes_of_several_models_are_one_table(run: Run, folder: Path) -> None:
    code, printed, err = run("layers", folder / "mixed", folder / "mixed", "--json")
    assert code == 0, err
    assert [task["model"] for task in json.loads(printed)["tasks"]] == ["mixed", "mixed #2"]
    code, printed, _ = run("layers", folder / "mixed", folder / "mixed")
    assert [line.split()[0] for line in printed.splitlines()[:5]] == ["layer", "0", "1", "gamma", "center"]


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--probe", "upos"], "--train"),
        (["--train", "TAGS", "--probe", "nothing"], "tags.txt has column 2, column 3"),
        (["--train", "TAGS", "--train", "TAGS", "--test", "TAGS"], "2 for --train, 1 for --test"),
        (["OTHER", "--train", "TAGS"], "one model"),
        (["--train", "TAGS", "--out", "x.jpg"], ".svg"),
        (["--train", "TAGS", "--examples", "0"], "--examples"),
    ],
)
def test_wrong_use_of_layers_is_refused(
    flags: list[str], part: str, run: Run, refused: Callable[..., None], folder: Path, tmp_path: Path
) -> None:
    tags = write_tags(tmp_path / "tags.txt")
    names = {"TAGS": tags, "OTHER": folder / "mixed"}
    refused(run("layers", folder / "base", *(names.get(flag, flag) for flag in flags)), 2, part)
