"""The command that shows every tensor of a text."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


def test_a_line_per_tensor(run: Run, folder: Path) -> None:
    code, out, err = run("trace", "the sailor paints", "--model", folder / "base")
    assert code == 0, err
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    (query,) = (line for line in lines if line.startswith("  query "))
    assert query.endswith("[batch, heads, queries, head dim]")
    assert "text vector" in out


def test_one_layer_has_meanings_and_statistics(run: Run, folder: Path) -> None:
    code, out, _ = run("trace", "the sailor paints", "--model", folder / "base", "--layer", "1")
    assert code == 0
    assert "Q = X W_Q" in out
    assert out.count("std ") == 14


def test_masks_classes_and_targets(run: Run, folder: Path, desk: Path) -> None:
    code, out, _ = run("trace", "the ___ paints", "--model", folder / "base")
    assert code == 0
    assert "masked language model" in out
    assert "row 3 of Q is its query" in out
    code, out, _ = run("trace", "the sailor paints", "--model", folder / "tuned", "--json")
    assert code == 0
    assert {each["token"] for each in json.loads(out)["steps"][0]["predictions"]["label"]} == {"sea", "food"}
    code, out, _ = run("trace", "boat 1", "Boot 1", "--model", desk / "ende", "--json")
    data = json.loads(out)
    assert [step["network"] for step in data["steps"]][:2] == ["encoder", "decoder"]
    assert data["steps"][-1]["cached"] == len(data["steps"]) - 2
    code, out, _ = run("trace", "boat 1", "--model", desk / "ende", "--tokens", "2", "--all")
    assert code == 0
    assert 1 <= out.count("cross-attention query") <= 3


def test_padding_of_further_texts(run: Run, folder: Path) -> None:
    base = ("trace", "the sailor paints", "--model", folder / "base", "--json")
    code, out, _ = run(*base, "--also", "the", "--also", "the sailor")
    assert code == 0
    assert json.loads(out)["tensors"][0]["shape"][0] == 3


def test_files_of_texts_and_figures(run: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the sailor")
    for name in ("a.svg", "a.html"):
        code, _, err = run("trace", tmp_path / "text.txt", "--model", folder / "base", "--out", tmp_path / name)
        assert code == 0
        assert name in err
        assert "sailor" in (tmp_path / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "code", "part"),
    [
        (["--layer", "9"], 1, "layer 9"),
        (["--tokens", "3"], 2, "--tokens"),
        (["--tokens", "-1"], 2, "--tokens"),
        (["--out", "a.txt"], 2, ".svg"),
        (["second", "--also", "third"], 2, "--also"),
    ],
)
def test_wrong_requests_are_refused(
    run: Run, folder: Path, refused: Callable[..., None], flags: list[str], code: int, part: str
) -> None:
    refused(run("trace", "the sailor", *flags, "--model", folder / "base"), code, part)


def test_a_model_of_counts_is_refused(run: Run, ngram: Path, refused: Callable[..., None]) -> None:
    refused(run("trace", "the sailor", "--model", ngram), 2, "counts words")
