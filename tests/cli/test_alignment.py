from collections.abc import Callable
from pathlib import Path

import pytest

import keel

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translator")
    pairs = [("the white dog", "el perro blanco"), ("the red moon", "la luna roja")] * 8
    system = keel.Seq2seq(width=8, attention_dim=8)
    settings = {"tokenizer": "words", "epochs": 1, "batch": 8, "device": "cpu"}
    keel.finetune(system, pairs, task="seq2seq", dev=None, out=folder / "model", **settings)
    return folder / "model"


def test_a_translation_shows_where_its_words_were_looked_for(translator: Path, tmp_path: Path, run: Run) -> None:
    code, out, err = run("translate", "the white moon", "--model", translator, "--alignment", tmp_path / "a.html")
    assert code == 0
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    words = [*out.split(), "the", "white", "moon"]
    assert all(f">{word}</text>" in page for word in words)
    assert str(tmp_path / "a.html") in err
    (tmp_path / "two.txt").write_text("the dog\n\nthe moon\n")
    code, out, err = run("translate", tmp_path / "two.txt", "--model", translator, "--alignment", tmp_path / "a.html")
    assert code == 0
    assert (tmp_path / "a.html").read_text(encoding="utf-8").count("<figure>") == 2, "a blank line has no picture"


def test_a_picture_of_no_known_kind_is_refused_before_anything_is_done(tmp_path: Path, run: Run) -> None:
    code, out, err = run("translate", "the dog", "--model", tmp_path / "nowhere", "--alignment", tmp_path / "a.gif")
    assert code == 2
    assert out == ""
    assert "a.gif must end in .svg" in err
