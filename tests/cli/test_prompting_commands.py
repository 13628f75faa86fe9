"""The prompt is shown, what is written goes to stdout, and what is wrong is a sentence."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keel.api import text_generation

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
PASSAGE = "The sailor repairs the boat."


def test_the_prompt_goes_to_stderr_and_the_answer_to_stdout(
    ngram: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run("ask", PASSAGE, "Who repairs it?", "--model", ngram)
    assert code == 0
    assert out.strip()
    assert f"{PASSAGE}\nQ: Who repairs it?\nA:\n" in err
    file = tmp_path / "passage.txt"
    file.write_text(f"{PASSAGE}\n")
    assert run("ask", file, "Who repairs it?", "--model", ngram) == (code, out, err)
    monkeypatch.setattr("sys.stdin", io.StringIO(PASSAGE))
    code, found, _ = run("ask", "-", "Who repairs it?", "--model", ngram, "--json")
    assert json.loads(found) == {"prompt": f"{PASSAGE}\nQ: Who repairs it?\nA:", "text": out.strip()}
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("the boat\tthe net\n")
    code, out, err = run("translate", "the sailor", "--by-pattern", pairs, "--model", ngram)
    assert (code, out.count("\n")) == (0, 1)
    assert "the boat = the net\nthe sailor =\n" in err
    code, out, _ = run("translate", "the sailor", "--by-pattern", pairs, "--model", ngram, "--json", "--tokens", 3)
    record = json.loads(out)
    assert (record["text"], record["prompt"]) == ("the sailor", "the boat = the net\nthe sailor =")
    (tmp_path / "lines.txt").write_text("the sailor\n\nthe boat\n")
    code, out, err = run("translate", tmp_path / "lines.txt", "--by-pattern", pairs, "--model", ngram)
    assert (code, out.count("\n"), out.splitlines()[1]) == (0, 3, "")
    assert "the boat = the net\nthe boat =\n" in err
    code, out, err = run("summarize", file, "--model", ngram, "--tokens", 12, "--sentences", 1)
    assert (code, out.count("\n")) == (0, 1)
    assert f"{PASSAGE}\nTL;DR:\n" in err
    code, found, _ = run("summarize", file, "--model", ngram, "--cue", "In short,", "--tokens", 4, "--json")
    assert json.loads(found)["prompt"] == f"{PASSAGE}\nIn short,"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_interruption_leaves_what_was_written(
    ngram: Path, run: Run, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    whole_sample = text_generation.sample

    def sample(*arguments: Any, **settings: Any) -> Iterator[list[int]]:
        for count, number in enumerate(whole_sample(*arguments, **settings)):
            if count == 3:
                raise KeyboardInterrupt
            yield number

    monkeypatch.setattr(text_generation, "sample", sample)
    code, out, err = run("summarize", PASSAGE, "--model", ngram, *form)
    assert code == 130
    assert err.endswith("keel: stopped after 3 of 100 tokens\n")
    found = json.loads(out) if form else {"text": out}
    assert len(found["text"].split()) in (2, 3)  # a full stop stands at a word
    assert found.get("prompt", PASSAGE).startswith(PASSAGE)


def test_last_words_and_choices_are_evaluated(ngram: Path, run: Run, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("The sailor came after the rain\nThe baker slept before winter\n")
    code, out, _ = run("evaluate", ngram, texts, "--by", "last-word")
    assert code == 0
    assert "accuracy 1.000" in out
    assert "perplexity is per last word" in out
    choices = tmp_path / "choices.jsonl"
    lines = [
        {"question": "The sailor came after", "choices": ["the rain", "winter two"], "label": 0},
        {"question": "The baker slept before", "choices": ["the dollars", "winter"], "label": 1},
    ]
    choices.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, _ = run("evaluate", ngram, choices, "--by", "choices", "--json")
    found = json.loads(out)
    assert found["values"]["accuracy by sum"]["value"] == 1
    assert "random baseline 0.500" in found["note"]


def test_bad_input(ngram: Path, folder: Path, run: Run, refused: Refused, tmp_path: Path) -> None:
    refused(run("ask", "", "Who?", "--model", ngram), 2, "the passage is empty")
    refused(run("ask", PASSAGE, "--model", ngram), 2, "there is no question")
    refused(run("ask", "水手修船。", "谁修船？"), 2, "choose a model with --model")
    without_task = run("ask", PASSAGE, "Who?", "--model", folder / "base")
    refused(
        without_task,
        1,
        "bert does not generate text: fine-tune it with --task answer, or use a language model, such as",
    )
    refused(run("summarize", "", "--model", ngram), 2, "the text is empty")
    refused(run("summarize", PASSAGE, "--model", ngram, "--sentences", 0), 2, "--sentences must be 1 or more")
    refused(run("summarize", PASSAGE, "--model", ngram, "--tokens", 0), 2, "--tokens must be 1 or more")
    refused(
        run("translate", "a boat", "--model", ngram),
        2,
        "prompt it with examples by --by-pattern",
        "or use keel generate",
    )
    (tmp_path / "none.tsv").write_text("no pair\n")
    refused(
        run("translate", "a", "--by-pattern", tmp_path / "none.tsv", "--model", ngram), 1, "none.tsv:1: 'no pair' is no"
    )
    for verb, *rest in (("ask", "Who?"), ("summarize",), ("generate",), ("translate", "--by-pattern", "pairs.tsv")):
        refused(run(verb, "missing.txt", *rest, "--model", ngram), 2, "there is no file missing.txt")
    pattern = ("translate", "a", "--by-pattern", tmp_path / "none.tsv", "--model", ngram)
    for flag in ("--trace", "--alignment", "--beam", "--best", "--length-penalty"):
        value = "a.html" if flag in ("--trace", "--alignment") else 1
        refused(run(*pattern, flag, value), 2, f"{flag} cannot be combined with --by-pattern")
    refused(run("translate", "a", "--model", ngram, "--tokens", 4), 2, "--tokens needs --by-pattern")
    refused(run("translate", "a", "--model", ngram, "--cut"), 2, "--cut needs --by-pattern")
    refused(run("translate", "", "--model", ngram), 2, "there is nothing to translate")
    refused(run("evaluate", ngram, folder / "train.tsv", "--by", "words"), 2, "--by")
    refused(
        run("evaluate", folder / "base", folder / "train.tsv", "--by", "last-word"), 1, "bert does not generate text"
    )
    (tmp_path / "short.txt").write_text("alone\n")
    refused(run("evaluate", ngram, tmp_path / "short.txt", "--by", "last-word"), 1, "short.txt:1", "two words or more")
