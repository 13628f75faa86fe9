"""keel generate and the perplexity of keel evaluate."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keel import language

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


def test_a_prompt_is_printed_with_what_goes_on_from_it(ngram: Path, run: Run) -> None:
    code, out, err = run("generate", "The sailor", "--model", ngram, "--tokens", 20, "--temperature", 0.8, "--seed", 1)
    assert (code, err) == (0, "")
    assert out.startswith("The sailor ")
    assert out.count("\n") == 1
    code, found, _ = run("generate", "The sailor", "--model", ngram, "--tokens", 20, "--temperature", 0.8, "--seed", 1,
                         "--json")  # fmt: skip
    assert json.loads(found) == {"prompt": "The sailor", "text": out.removeprefix("The sailor")[:-1]}
    code, out, _ = run("generate", "--model", ngram, "--tokens", 5)
    assert out == out.lstrip()


def test_evaluate_prints_perplexities(ngram: Path, english_corpus: Path, run: Run) -> None:
    code, out, _ = run("evaluate", ngram, english_corpus)
    assert code == 0
    assert "by token" in out
    assert "by word" in out
    assert "bits by byte" in out
    code, out, _ = run("evaluate", ngram, english_corpus, "--json")
    assert json.loads(out)["main"] == "ngram by word"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_interruption_leaves_what_was_written(
    ngram: Path, run: Run, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    drawn = language.sample

    def sample(*arguments: Any, **settings: Any) -> Iterator[list[int]]:
        for count, number in enumerate(drawn(*arguments, **settings)):
            if count == 3:
                raise KeyboardInterrupt
            yield number

    monkeypatch.setattr(language, "sample", sample)
    code, out, err = run("generate", "The sailor", "--model", ngram, *form)
    assert code == 130
    assert err == "keel: stopped after 3 of 50 tokens\n"
    assert len((json.loads(out)["text"] if form else out.removeprefix("The sailor")).split()) == 3


def test_bad_input(ngram: Path, folder: Path, run: Run, refused: Refused, tmp_path: Path) -> None:
    refused(run("generate", "The", "--model", ngram, "--tokens", 0), 2, "--tokens must be 1 or more, not 0")
    refused(run("generate", "The", "--model", ngram, "--temperature", -1), 2, "--temperature must be 0")
    refused(run("generate", "Qwertz", "--model", ngram), 1, "knows no word of 'Qwertz'")
    refused(run("generate", "The"), 2, "--model")
    refused(run("generate", "The", "--model", folder / "base"), 1, "bert does not write text")
    refused(run("finetune", ngram, folder / "train.tsv", "--out", tmp_path / "m"), 2, "has no vectors")
    refused(run("evaluate", folder / "base", folder / "train.tsv"), 2, "knows no task yet")
    assert not (tmp_path / "m").exists()
