"""Translation by commands: two files side by side in, a line for each line out, and one sentence for what is wrong."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keel.api import translation
from keel.cli.score_lines import score_lines
from keel.data.predictions import GeneratedText
from keel.errors import UsageError
from keel.generation.beam_search import SearchInterrupted
from keel.metrics.bootstrap import Score
from keel.metrics.scores import PredictionError, Scores

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


def test_two_files_are_learned_from_and_scored(desk: Path, run: Run) -> None:
    config = json.loads((desk / "ende" / "config.json").read_text())
    assert config["keel"]["card"]["scores"]["dev"]["count"] == 4
    assert config["keel"]["card"]["text"] == "12 examples of train.en and train.de"
    for files in ([desk / "test.en", desk / "test.de"], [f"{desk / 'test.en'},{desk / 'test.de'}"]):
        code, out, err = run("evaluate", desk / "ende", *files, "--beam", "2", "--json")
        assert code == 0, err
        assert json.loads(out)["count"] == 3
        assert json.loads(out)["values"].keys() == {"bleu", "chrf", "exact", "loss"}
    code, out, _ = run("predict", desk / "ende", desk / "test.en", "--best", "2")
    first = json.loads(out.splitlines()[0])
    assert first["text"] == "boat 0"
    assert first["best"][0]["generated"] == first["generated"]
    assert "a text" in run("info", desk / "ende")[1]


def test_a_model_is_fine_tuned_further_with_other_settings(desk: Path, run: Run, tmp_path: Path) -> None:
    line = ["finetune", desk / "ende", desk / "train.en", desk / "train.de", "--task", "seq2seq", "--dev", "none"]
    code, _, err = run(
        *line, "--steps", "1", "--system.dropout", "0.4", "--system.label_smoothing", "0.2", "--out", tmp_path / "m"
    )
    assert code == 0, err
    settings = json.loads((tmp_path / "m" / "config.json").read_text())["keel"]["settings"]
    assert (settings["dropout"], settings["label_smoothing"]) == (0.4, 0.2)
    code, _, err = run(*line, "--system.width", "64", "--out", tmp_path / "wide")
    assert code == 2
    assert "width is fixed in a trained model: leave it out, or start from a new transformer" in err


def test_what_is_read_may_have_another_encoding_and_must_not_be_empty(desk: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("boat é 1\n".encode("latin-1"))
    line = ["translate", tmp_path / "latin.txt", "--model", desk / "ende", "--json"]
    assert json.loads(run(*line, "--encoding", "latin-1")[1])["text"] == "boat é 1"
    assert "use --encoding" in run(*line)[2]
    (tmp_path / "empty.txt").write_text("")
    code, out, err = run("translate", tmp_path / "empty.txt", "--model", desk / "ende")
    assert (code, out) == (1, "")
    assert "empty.txt is empty" in err
    (tmp_path / "gap.txt").write_text("boat 1\n\nboat 2\n")
    traced = run("translate", tmp_path / "gap.txt", "--model", desk / "ende", "--trace", tmp_path / "t.json")
    assert (traced[0], "text 2, which is empty" in traced[2]) == (2, True)
    wrong: Any = 123
    with pytest.raises(UsageError, match="123 is no text: give a string"):
        translation.translate(wrong, model=desk / "ende")


def test_a_trained_model_has_its_size(desk: Path, run: Run, tmp_path: Path) -> None:
    line = ["finetune", desk / "ende", desk / "train.en", desk / "train.de", "--task", "seq2seq", "--size", "tiny"]
    code, _, err = run(*line, "--out", tmp_path / "m")
    assert (code, "--size is for a new model" in err) == (2, True)


def test_an_empty_answer_is_shown_as_one() -> None:
    error = PredictionError(text="one", second=None, label="Eins", predicted="", confidence=0.03, where="a:1")
    scores = Scores(main="exact", values={"exact": Score(value=0.0, low=0.0, high=0.0)}, count=1, errors=[error])
    assert [*score_lines(scores)][-1] == "a:1: Eins predicted as an empty text (0.03): one"


def test_flags_before_the_files_take_no_file_away(desk: Path, run: Run, tmp_path: Path, small: list[str]) -> None:
    files = [desk / "train.en", desk / "train.de"]
    held = ["--dev", desk / "val.en", desk / "val.de", "--test", f"{desk / 'test.en'},{desk / 'test.de'}"]
    words = [
        "--task",
        "seq2seq",
        *held,
        "transformer",
        *files,
        *small,
        "--text.separate",
        "--out",
        tmp_path / "m",
        "--json",
    ]
    code, out, err = run("finetune", *words)
    assert code == 0, err
    scores = json.loads(out)["scores"]
    assert (scores["dev"]["count"], scores["test"]["count"]) == (4, 3)
    assert (tmp_path / "m" / "target" / "tokenizer.json").exists()


def test_translate_writes_a_line_for_each_line(desk: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run("translate", desk / "test.en", "--model", desk / "ende")
    assert (code, out.count("\n")) == (0, 3), err
    monkeypatch.setattr("sys.stdin", io.StringIO("boat 0\n\nboat 2\n"))
    code, piped, _ = run("translate", "-", "--model", desk / "ende")
    lines, whole = piped.splitlines(), out.splitlines()
    assert lines == [whole[0], "", whole[2]]
    code, out, _ = run("translate", "boat 0", "--model", desk / "ende", "--best", "2", "--json")
    record = json.loads(out)
    assert (record["text"], record["generated"], len(record["best"])) == ("boat 0", whole[0], 2)


def test_a_trace_shows_how_it_was_found(desk: Path, run: Run, tmp_path: Path) -> None:
    code, _, err = run("translate", "boat 0", "--model", desk / "ende", "--trace", tmp_path / "trace.json")
    assert code == 0, err
    (text,) = json.loads((tmp_path / "trace.json").read_text())["texts"]
    assert "".join(text["source"]).startswith("bo")
    assert text["path"]
    assert f"trace: {tmp_path / 'trace.json'}" in err


def test_interrupted_it_keeps_what_it_has(desk: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = translation.translations

    def stopped(*given: Any, **settings: Any) -> Iterator[Any]:
        yield next(whole(*given, **settings))
        raise KeyboardInterrupt

    monkeypatch.setattr(translation, "translations", stopped)
    code, out, err = run("translate", desk / "test.en", "--model", desk / "ende")
    assert (code, out.count("\n")) == (130, 1)
    assert "stopped after 1 texts" in err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_interrupted_it_prints_what_was_finished_of_a_batch(
    desk: Path, run: Run, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    def stopped(texts: Iterator[str], given: Any, **settings: Any) -> Iterator[Any]:
        yield [GeneratedText(next(texts))]
        found = [[GeneratedText(text)] if place % 2 else [] for place, text in enumerate([*texts])]
        raise SearchInterrupted([*found, []])

    monkeypatch.setattr(translation, "translations", stopped)
    code, out, err = run("translate", desk / "test.en", "--model", desk / "ende", *form)
    assert code == 130
    if form:
        assert [json.loads(line)["text"] for line in out.splitlines()] == ["boat 0", "boat 2"]
    else:
        assert out == "boat 0\n\nboat 2\n"
    gap = "" if form else "; 1 line of unfinished texts left empty"
    assert err == f"keel: stopped after 2 texts, which are printed{gap}\n"


SLOW = """
import sys, threading, time
from keel.cli import main
from keel.tasks.sequence_to_sequence import SequenceToSequence, SequenceToSequenceGenerator

here, quick = threading.local(), threading.Event()
whole, onwards = SequenceToSequence._hypotheses, SequenceToSequenceGenerator.step

def hypotheses(task, data, index, *given, **settings):
    here.slow = data.lengths[index].min() > data.lengths.min()
    found = whole(task, data, index, *given, **settings)
    quick.set()
    return found

def step(writer, *given):
    scores, state = onwards(writer, *given)
    if here.slow:  # and never ends
        scores[:, writer.eos_id] = -100
        quick.wait()
        time.sleep(1)
        print("slow", file=sys.stderr, flush=True)
    return scores, state

SequenceToSequence._hypotheses, SequenceToSequenceGenerator.step = hypotheses, step
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_search_over_two_threads_ends_at_once(desk: Path, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "texts").write_text("boat 0\n" * 64 + "boat 1 boat 2 boat 3\n" * 64)
    words = ["translate", tmp_path / "texts", "--model", desk / "ende", "--threads", "2"]
    interruptible, pipe = partial(signal.signal, signal.SIGINT, signal.SIG_DFL), subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, *map(str, words)], stdout=pipe, stderr=pipe, text=True, preexec_fn=interruptible
    ) as process:
        assert process.stderr is not None
        while process.stderr.readline() not in ("slow\n", ""):
            pass
        process.send_signal(number)
        begun = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < 10, "its batch takes more than twenty seconds"
    assert process.returncode == 130, err
    assert out.count("\n") == 64
    assert err.endswith("keel: stopped after 64 texts, which are printed\n")


def test_a_terminated_process_prints_what_it_has(desk: Path) -> None:
    command = [sys.executable, "-m", "keel", "translate", "-", "--model", str(desk / "ende")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("boat 0\n" * 2000)
        process.stdin.flush()
        process.stdout.readline()
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.fullmatch(r"keel: stopped after \d+ texts, which are printed", err.splitlines()[-1])


def test_wrong_usage_is_refused(
    desk: Path, run: Run, refused: Refused, tmp_path: Path, folder: Path, small: list[str]
) -> None:
    def finetune(*words: str | Path) -> tuple[int, str, str]:
        return run("finetune", "transformer", *words, "--task", "seq2seq", *small, "--out", tmp_path / "m")

    refused(finetune(desk / "train.en", desk / "val.de"), 1, "train.en has 12 lines", "val.de has 4")
    gap = tmp_path / "gap.de"
    gap.write_text("Boot\n" * 5 + "\n" + "Boot\n" * 6)
    refused(finetune(desk / "train.en", gap), 1, "train.en:6: the target is empty", "drop it")
    refused(finetune(desk / "train.en"), 1, "sources without targets", "two parallel files")
    refused(finetune(desk / "a", desk / "b", desk / "c"), 2, "3 files were given")
    refused(run("translate", "boat", "--model", desk / "ende", "--beam", "0"), 2, "--beam must be 1")
    refused(run("evaluate", desk / "ende", desk / "test.en", desk / "test.de", "--beam", "0"), 2, "--beam must be 1")
    refused(run("evaluate", desk / "ende", desk / "test.en"), 1, "sources without targets")
    refused(run("evaluate", folder / "tuned", folder / "test.tsv", "--beam", "3"), 2,
            "--beam is for seq2seq models; tuned was fine-tuned for classify")  # fmt: skip
    refused(run("predict", folder / "tuned", folder / "test.tsv", "--best", "3"), 2, "--best is for seq2seq models")
    refused(run("evaluate", desk / "ende", desk / "test.en", desk / "test.de", "--stride", "16"), 2,
            "--stride is for the perplexity", "ende was fine-tuned")  # fmt: skip
    refused(run("translate", "boat", "--model", folder / "base"), 2, "is no seq2seq model")
    for verb, *rest in (("generate",), ("ask", "Who?"), ("summarize",), ("translate", "--by-pattern", desk / "pairs")):
        (desk / "pairs").write_text("sea\tMeer\n")
        refused(
            run(verb, "boat", *rest, "--model", desk / "ende"), 1, "transformer does not generate", "keel translate"
        )
    refused(run("translate", "boat", "--model", desk / "ende", "--trace", tmp_path / "x.png"), 2, "must end in .html")
    refused(run("translate", "boat", "--model", desk / "ende", "--beam", "1001"), 2, "1,000 or less, not 1001")
    refused(run("translate", " ", "--model", desk / "ende"), 2, "there is nothing to translate")
    with pytest.raises(UsageError, match="there is nothing to translate"):
        translation.translate("", model=desk / "ende")
    assert str(translation.translate([""], model=desk / "ende")[0]) == ""
    refused(run("translate", "none.txt", "--model", desk / "ende"), 2, "there is no file none.txt")
    refused(run("finetune", desk / "ende", desk / "val.en", desk / "val.de", "--task", "seq2seq",
                "--text.vocabulary", "300", "--out", tmp_path / "m"), 2, "has its tokenizer already")  # fmt: skip


def test_a_recipe_sets_the_task(desk: Path, run: Run, tmp_path: Path, refused: Refused, small: list[str]) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('task = "seq2seq"\n[system]\nname = "transformer"\nmax_positions = 24\n[train]\nepochs = 50\n')
    words = ["--recipe", recipe, "--dev", desk / "val.en", desk / "val.de", *small, "--out", tmp_path / "m", "--json"]
    code, out, err = run("finetune", desk / "train.en", desk / "train.de", *words)
    assert code == 0, err
    assert json.loads(out)["scores"]["dev"]["count"] == 4
    assert json.loads((tmp_path / "m" / "config.json").read_text())["keel"]["card"]["steps"] == 2
    recipe.write_text(recipe.read_text() + "hidden_size = 5\n")
    refused(run("finetune", desk / "train.en", desk / "train.de", *words), 2, f"{recipe}: --train.hidden_size")
