"""keel generate and the perplexity of keel evaluate."""

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keel.api import text_generation
from keel.systems.ngram import Ngram

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


def test_a_prompt_is_printed_with_its_continuation(ngram: Path, run: Run) -> None:
    code, out, err = run("generate", "The sailor", "--model", ngram, "--tokens", 20, "--temperature", 0.8, "--seed", 1)
    assert (code, err) == (0, "")
    assert out.startswith("The sailor")
    assert out.count("\n") == 1
    code, found, _ = run("generate", "The sailor", "--model", ngram, "--tokens", 20, "--temperature", 0.8, "--seed", 1,
                         "--json")  # fmt: skip
    assert json.loads(found) == {"prompt": "The sailor", "text": out.removeprefix("The sailor")[:-1]}
    code, out, _ = run("generate", "--model", ngram, "--tokens", 5)
    assert out == out.lstrip()


def test_a_prompt_may_be_a_file_or_stdin(
    ngram: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("The sailor\n")
    given = run("generate", "The sailor", "--model", ngram, "--tokens", 9)
    assert given[0] == 0
    assert run("generate", tmp_path / "prompt.txt", "--model", ngram, "--tokens", 9) == given
    monkeypatch.setattr("sys.stdin", io.StringIO("The sailor\n"))
    assert run("generate", "-", "--model", ngram, "--tokens", 9) == given


def test_evaluate_prints_perplexities(ngram: Path, english_corpus: Path, run: Run) -> None:
    code, out, _ = run("evaluate", ngram, english_corpus)
    assert code == 0
    assert "per token" in out
    assert "per word" in out
    assert "bits per byte" in out
    code, out, _ = run("evaluate", ngram, english_corpus, "--json")
    assert json.loads(out)["main"] == "ngram per word"


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
    code, out, err = run("generate", "The sailor", "--model", ngram, *form)
    assert code == 130
    assert err == "keel: stopped after 3 of 50 tokens\n"
    assert len((json.loads(out)["text"] if form else out.removeprefix("The sailor")).split()) == 3


@pytest.mark.parametrize("form", [[], ["--best", "2"], ["--json"]])
def test_an_interrupted_search_shows_its_best_text(
    ngram: Path, run: Run, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    found = text_generation.next_token_model
    steps: list[int] = []

    def next_token_model(model: Any) -> Any:
        generator = found(model)
        onwards = generator.step

        def step(*given: Any) -> Any:
            steps.append(1)
            if len(steps) == 4:
                raise KeyboardInterrupt
            return onwards(*given)

        monkeypatch.setattr(generator, "step", step)
        return generator

    monkeypatch.setattr(text_generation, "next_token_model", next_token_model)
    code, out, err = run("generate", "The sailor", "--model", ngram, "--beam", 3, *form)
    assert code == 130
    assert err == "keel: stopped before the search had ended; this is its best text so far\n"
    text = json.loads(out)["text"] if "--json" in form else out.removeprefix("The sailor")
    assert 0 < len(text.split()) <= 3


def test_the_best_of_a_search_are_listed(ngram: Path, run: Run, tmp_path: Path) -> None:
    words = ("generate", "The sailor", "--model", ngram, "--tokens", 12, "--beam", 4)
    code, out, _ = run(*words)
    assert code == 0
    assert out.startswith("The sailor")
    assert out.count("\n") == 1
    code, listed, _ = run(*words, "--best", 3)
    rows = listed.splitlines()
    assert [row.split()[0] for row in rows] == sorted((row.split()[0] for row in rows), key=float, reverse=True)
    assert len(rows) == 3
    assert rows[0].endswith(out[:-1])
    code, found, _ = run(*words, "--best", 3, "--json", "--trace", tmp_path / "trace.html")
    data = json.loads(found)
    assert ["The sailor" + each["text"] for each in data["best"]] == [row.split(maxsplit=1)[1] for row in rows]
    assert data["best"][0]["score"] == pytest.approx(float(rows[0].split()[0]), abs=1e-3)
    assert "<svg" in (tmp_path / "trace.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", [[], ["--beam", "3"]])
def test_the_text_has_ended_its_line_when_a_message_comes(
    ngram: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    words = ("generate", "The sailor", "--model", ngram, "--tokens", 5, *form)
    _, text, _ = run(*words)
    monkeypatch.setattr("sys.stderr", sys.stdout)  # a terminal shows both
    code, shown, _ = run(*words, "--trace", tmp_path / "trace.html")
    assert (code, shown) == (0, f"{text}trace: {tmp_path / 'trace.html'}\n")


def test_a_stop_string_and_a_penalty(ngram: Path, run: Run) -> None:
    words = ("generate", "The sailor", "--model", ngram, "--tokens", 30, "--seed", 1)
    _, whole, _ = run(*words)
    _, out, _ = run(*words, "--stop", "xyz", "--stop", ".")
    assert out == whole[: whole.index(".")] + "\n"
    assert run(*words, "--temperature", 0)[1] != run(*words, "--temperature", 0, "--repetition-penalty", 9)[1]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_empty_generation_gets_a_note(
    ngram: Path, run: Run, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    def generated(*flags: Any) -> tuple[str, str]:
        code, out, err = run("generate", "The sailor", "--model", ngram, "--tokens", 9, *flags, *form)
        assert code == 0
        return json.loads(out)["text"] if form else out.removeprefix("The sailor").removesuffix("\n"), err

    stopped = "the model generated the stop string first\n"
    whole, message = generated()
    assert message == ""
    assert generated("--stop", whole[:2]) == ("", stopped)
    assert generated("--stop", whole[1]) == (" ", stopped)
    assert generated("--beam", 2, "--stop", generated("--beam", 2)[0]) == ("", stopped)
    found = text_generation.next_token_model

    def next_token_model(model: Any) -> Any:
        """One that ends a text whatever stands before."""
        generator = found(model)
        onwards = generator.step

        def step(*given: Any) -> Any:
            scores, state = onwards(*given)
            scores[:, generator.eos_id] = 99
            return scores, state

        monkeypatch.setattr(generator, "step", step)
        return generator

    monkeypatch.setattr(text_generation, "next_token_model", next_token_model)
    monkeypatch.setattr(Ngram, "default_sentences", "none")  # sampling then ends at the EOS token
    assert generated("--stop", "xyz") == (
        "", "the model ended the text at once: another --seed, a higher --temperature, or a longer prompt may help\n"
    )  # fmt: skip
    text, message = generated("--beam", 2)
    assert (text, message.split(": ")[0]) == ("", "the model ended the text at once")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_is_interrupted_prints_what_it_has(ngram: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "keel", "generate", "The", "--model", str(ngram), "--tokens", "10000000"]
    interruptible = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests in the background have it muted
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=interruptible
    ) as process:
        assert process.stdout is not None
        begun = process.stdout.read(12)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.fullmatch(r"keel: stopped after \d+ of 10000000 tokens\n", err)
    assert (begun + out).startswith("The ")
    assert (begun + out).endswith("\n")


def test_bad_input(ngram: Path, folder: Path, run: Run, refused: Refused, tmp_path: Path) -> None:
    refused(run("generate", "The", "--model", ngram, "--tokens", 0), 2, "--tokens must be 1 or more, not 0")
    refused(run("generate", "The", "--model", ngram, "--temperature", -1), 2, "--temperature must be 0")
    refused(run("generate", "The", "--model", ngram, "--temperature", "nan"), 2, "--temperature must be a number")
    for seed in (2**63, -1):
        refused(run("generate", "The", "--model", ngram, "--seed", seed), 2, f", not {seed}")
    refused(run("generate", "The", "--model", ngram, "--top-k", -1), 2, "--top-k must be 0")
    refused(run("generate", "The", "--model", ngram, "--beam", 0), 2, "--beam must be 1 or more and 1,000")
    refused(run("generate", "The", "--model", ngram, "--beam", 2, "--best", 3), 2, "--best must be between 1 and")
    refused(run("generate", "The", "--model", ngram, "--best", 3), 2, "--best is a setting of beam search")
    refused(run("generate", "The", "--model", ngram, "--length-penalty", 1), 2, "--length-penalty is a setting")
    refused(run("generate", "The", "--model", ngram, "--beam", 2, "--top-k", 3), 2, "beam search does not sample")
    refused(run("generate", "The", "--model", ngram, "--repetition-penalty", 0), 2, "--repetition-penalty must be")
    refused(run("generate", "The", "--model", ngram, "--stop", ""), 2, "--stop is empty")
    refused(run("generate", "Qwertz", "--model", ngram), 1, "all words of 'Qwertz' are unknown")
    refused(run("generate", "你好"), 2, "choose a model with --model")
    refused(run("generate", "The", "--model", folder / "base"), 1, "bert does not generate text")
    refused(run("evaluate", ngram, folder / "train.tsv", "--length-penalty", 1), 2,
            "--length-penalty is for seq2seq models; ngram is a language model")  # fmt: skip
    refused(run("evaluate", ngram, folder / "train.tsv", "--by", "last-word", "--stride", 4), 2, "--stride is for")
    refused(run("evaluate", ngram, folder / "train.tsv", "--stride", 0), 2, "stride")
    refused(run("finetune", ngram, folder / "train.tsv", "--out", tmp_path / "m"), 2, "has no word vectors")
    refused(run("embed", "the sailor", "--model", ngram), 1, "has no word vectors")
    refused(run("evaluate", folder / "base", folder / "train.tsv"), 2, "has no task")
    assert not (tmp_path / "m").exists()
