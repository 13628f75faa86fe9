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
        (["--out", "a.pdf"], ".svg"),
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
