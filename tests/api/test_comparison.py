"""`compare`: cells are computed in processes of their own, stored by content, and reused; failures stay single."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keel
from keel.api import comparison_processes
from keel.api.comparison import _several
from keel.api.comparison_processes import Processes, Work
from keel.api.comparison_rows import resolve_rows
from keel.api.comparison_worker import CellJob, FinetuneJob, failure_reason, shown_prediction
from keel.api.finetuning_runs import FineTuningRuns
from keel.data.answer_spans import NO_ANSWER
from keel.data.collation import EncodedExamples
from keel.data.examples import Labels, read_examples
from keel.data.label_kinds import LabelKind, Prediction, SingleLabel
from keel.data.predictions import ChoicePrediction, SpanAnswer, TaggedText
from keel.errors import KeelError
from keel.metrics.comparison_results import Comparison
from keel.systems.fasttext import FastText, FastTextFineTuning
from tests.tiny_task import sentences

SYSTEMS = [keel.Onehot().from_scratch(), keel.Cnn(width=8, filters=4)]
TRAIN, TEST = sentences(80, ["good", "bad"]), sentences(60, ["good", "bad"], seed=1)
TRANSFER = sentences(30, ["bad", "good"], seed=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare") / "out"


@pytest.fixture(scope="module")
def first(folder: Path) -> tuple[Comparison, list[dict]]:
    events: list[dict] = []
    found = keel.compare(
        SYSTEMS, train=TRAIN, test=TEST, transfer=[TRANSFER], seeds=2, train_sizes=[20, "all"], out=folder,
        on_event=events.append,
    )  # fmt: skip
    return found, events


def cells(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}


def test_every_cell_has_scores_and_costs(first: tuple[Comparison, list[dict]]) -> None:
    found, events = first
    assert found.rows == ("onehot", "cnn")
    assert [column.part for column in found.columns] == ["test", "transfer"]
    assert found.sizes(found.columns[0]) == [20, 80]
    for cell in found.cells:
        assert len(cell.seeds) == 2
        assert not cell.error
        assert cell.pretraining is None
        plain = cell.to_dict()
        assert 0 <= plain["low"] <= plain["score"] <= plain["high"] <= 1
        for name in ("finetuning_seconds", "parameters", "texts_per_second", "finetuning_epochs"):
            assert plain[name] > 0, name
        assert plain["peak_memory_bytes"] > 50_000_000
        assert plain["test_size"] == (60 if cell.column.part == "test" else 30)
    assert found.cell("onehot", found.columns[0]).score.value > 0.9  # one word gives the label away
    assert [(event["done"], event["total"]) for event in events if event["event"] == "cells"][-1] == (8, 8)
    first_left = [event["seconds_left"] for event in events if event["event"] == "cells" and not event["done"]]
    assert any(left is not None for left in first_left)  # estimated from the steps of the first cells


def test_a_cell_has_the_score_of_a_single_finetuning(first: tuple[Comparison, list[dict]]) -> None:
    found, _ = first
    model = keel.finetune(SYSTEMS[1], TRAIN, dev=None, seed=1, progress=False)
    scores = keel.evaluate(model, TEST)
    cell = found.cell("cnn", found.columns[0])
    assert cell.seeds[1].items["test"].value == pytest.approx(scores.main_value)


@pytest.mark.slow
def test_a_rerun_reuses_cells_and_a_new_row_adds_its_own(folder: Path, first: tuple[Comparison, list[dict]]) -> None:
    before = cells(folder)
    assert len(before) == 8
    events: list[dict] = []
    rows = [SYSTEMS[0], keel.Cnn(width=4, filters=4)]
    found = keel.compare(rows, train=TRAIN, test=TEST, transfer=[TRANSFER], seeds=2, out=folder, on_event=events.append)
    after = cells(folder)
    assert {name: after[name] for name in before} == before
    assert len(after) == 10  # two seeds of the new row, of all examples only
    assert found.columns[0].trained_on == 80
    assert any("2 of 4 cells are stored" in event.get("text", "") for event in events)
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "Comparison of 2 systems" in report


def test_a_failed_row_shows_its_reason_and_the_others_continue(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    keel.finetune(keel.Cnn(width=4, filters=2), TRAIN, dev=None, epochs=1, out=broken, progress=False)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    found = keel.compare([SYSTEMS[0], broken], train=TRAIN, test=TEST, seeds=1, out=tmp_path / "out", progress=False)
    (column,) = found.columns
    assert [cell.row for cell in found.ranking(column)] == ["onehot"]
    (failed,) = found.failed()
    assert failed.row == "broken"
    assert "model.safetensors" in failed.error
    results = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert next(each for each in results if each["row"] == "broken")["error"] == failed.error


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_comparison_resumes(tmp_path: Path, sent: signal.Signals) -> None:
    """Nothing that was finished is lost, and no process is left behind."""
    train = tmp_path / "train.tsv"
    train.write_text("\n".join(["text\tlabel", *(f"{text}\t{label}" for text, label in TRAIN)]) + "\n")
    words = ["compare", "onehot", "cnn", "--train", train, "--test", train, "--seeds", "15", "--workers", "1"]
    command = [sys.executable, "-m", "keel", *map(str, words), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    stored = tmp_path / "out" / "cells"
    until = time.monotonic() + 120
    while time.monotonic() < until and not (stored.exists() and len([*stored.glob("*.json")]) >= 2):
        time.sleep(0.05)
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    if sent == signal.SIGINT:
        assert process.returncode == 130
        assert "rerun the command to resume" in err.splitlines()[-1]
        assert any(line.startswith("stopping: ") and "Ctrl-C again" in line for line in err.splitlines())
        assert (tmp_path / "out" / "report.html").exists()
    time.sleep(2)
    before = cells(tmp_path / "out")
    assert 2 <= len(before) < 30
    time.sleep(2)
    assert cells(tmp_path / "out") == before, "a worker is still running"
    words[words.index("15")] = "3"
    assert (
        subprocess.run([sys.executable, "-m", "keel", *map(str, words), "--out", str(tmp_path / "out")]).returncode == 0
    )
    after = cells(tmp_path / "out")
    assert {name: after[name] for name in before} == before


def test_a_killed_process_is_a_failed_cell(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_workers(event: dict) -> None:
        if event["event"] == "cells" and event["running"] and not killed:
            for status in Path("/proc").glob("[0-9]*/status"):
                try:
                    text = status.read_text()
                    line = (status.parent / "cmdline").read_bytes()
                except OSError:
                    continue
                if f"PPid:\t{os.getpid()}\n" in text and b"comparison_worker" in line:
                    killed.append(int(status.parent.name))
                    os.kill(killed[-1], signal.SIGKILL)

    found = keel.compare(
        [SYSTEMS[1]], train=TRAIN, test=TEST, seeds=1, workers=1, out=tmp_path / "out", on_event=kill_workers
    )
    assert killed
    (failed,) = found.failed()
    assert "SIGKILL" in failed.error
    assert "no system was scored" in found.verdict(found.columns[0])


@pytest.mark.slow
def test_a_system_is_pretrained_once_and_shared_by_seeds(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{text} .\n\n" for text, _ in sentences(300, ["good", "bad"], seed=5)))
    rows = [keel.Word2vec(width=8), keel.Onehot().from_scratch()]
    events: list[dict] = []
    found = keel.compare(
        rows, corpus=str(corpus), equal="tokens", epochs=2, train=TRAIN, test=TEST, seeds=2, out=tmp_path / "out",
        on_event=events.append,
    )  # fmt: skip
    assert not found.failed()
    cell = found.cell("word2vec", found.columns[0])
    assert cell.pretraining is not None
    assert cell.pretraining.epochs >= 2  # a batch is larger than this corpus
    assert len([*(tmp_path / "out" / "models").iterdir()]) == 1
    assert not [event for event in events if "minutes" in event.get("text", "")]
    again = keel.compare(
        rows, corpus=str(corpus), equal="tokens", epochs=2, train=TRAIN, test=TEST, seeds=2, out=tmp_path / "out",
        progress=False,
    )  # fmt: skip
    assert again.to_dicts() == found.to_dicts()
    both = keel.compare(
        [*rows, keel.Word2vec(width=4)], corpus=str(corpus), equal="tokens", epochs=2, train=TRAIN, test=TEST, seeds=3,
        out=tmp_path / "out", progress=False,
    )  # fmt: skip
    assert not both.failed()  # the stored model is found under the row's longer name
    assert both.rows == ("word2vec (width 8)", "onehot", "word2vec (width 4)")
    assert both.cells[0].seeds[0].seconds == found.cells[0].seeds[0].seconds
    assert len([*(tmp_path / "out" / "models").iterdir()]) == 2


def test_rows_of_one_name_have_their_folders_or_settings_in_it(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vectors.txt").write_text(f"2 2\ngood 1 {len(name)}\n{name} 2 1\n")
    files = [tmp_path / name / "vectors.txt" for name in ("old", "new")]
    given = [*files, keel.Cnn(width=8), keel.Cnn(width=4), "onehot"]
    rows = resolve_rows(given, "classify", False, tmp_path / "models", lambda event: None)
    names = ["old/vectors.txt", "new/vectors.txt", "cnn (width 8)", "cnn (width 4)", "onehot"]
    assert [row.name for row in rows] == names


def test_a_system_has_its_smallest_size_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keel.api.comparison_rows.pick_device", lambda name: torch.device("cpu"))
    given = ["bert", "transformer", "transformer:base", "seq2seq", "rnn"]
    rows = resolve_rows(given, "classify", True, tmp_path, lambda event: None)
    assert [row.name for row in rows] == ["bert:tiny", "transformer:tiny", "transformer:base", "seq2seq", "rnn:small"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": ["onhot"]}, "did you mean 'onehot'"),
        ({"rows": []}, "nothing to compare"),
        ({"rows": ["bert"]}, "give raw text with corpus"),
        ({"rows": ["ngram"], "corpus": ["a text"]}, "no word vectors"),
        ({"rows": ["onehot", keel.Onehot().from_scratch()]}, "given twice"),
        ({"rows": ["bert:gigantic"], "corpus": ["a text"]}, "no size 'gigantic'"),
        ({"test": [["a film", "a story"]]}, "label"),
        ({"test": [("a film", "good"), ("a story", "superb")]}, "'superb'"),
        ({"seeds": 0}, "seeds must be"),
        ({"seeds": 1.5}, "seeds must be"),
        ({"train_sizes": "²"}, "train_sizes must be numbers"),
        ({"train_sizes": "50,many"}, "train_sizes must be numbers"),
        ({"train_sizes": [5000]}, "fewer than train_sizes"),
        ({"task": "clasify"}, "classify"),
        ({"train": [TRAIN, TRAIN]}, "every train needs its test"),
        ({"minutes": 3, "equal": "tokens"}, "minutes"),
        ({"epochs": 2}, "epochs is for equal tokens"),
        ({"rows": ["cnn"], "task": "seq2seq", "train": [("a", "b")] * 3, "test": [("a", "b")] * 3}, "encoder-decoder"),
    ],
)
def test_mistakes_are_reported_before_any_compute_is_spent(tmp_path: Path, changed: dict, message: str) -> None:
    settings = {"rows": ["onehot"], "train": TRAIN, "test": TEST, "seeds": 2, **changed}
    with pytest.raises(keel.KeelError, match=message):
        keel.compare(settings.pop("rows"), out=tmp_path / "out", progress=False, **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_in_memory_on_two_tasks(tmp_path: Path) -> None:
    model = keel.finetune(SYSTEMS[1], TRAIN, dev=None, epochs=1, out=tmp_path / "mine", progress=False)
    other = sentences(40, ["good", "odd"])
    found = keel.compare(
        [model], train=[TRAIN, other], test=[TEST, other], seeds=1, workers=1, out=tmp_path / "out", progress=False
    )
    assert found.rows == ("mine",)
    assert [column.name for column in found.columns] == ["test 1", "test 2"]
    assert [cell.column.trained_on for cell in found.cells] == [80, 40]
    assert all(cell.seeds for cell in found.cells)
    assert [*(tmp_path / "out" / "models").iterdir()]


def test_another_folder_is_never_used(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(keel.UsageError, match="contains no comparison"):
        keel.compare(["onehot"], train=TRAIN, test=TEST, out=tmp_path, progress=False)


def test_a_list_of_datasets_is_several_tasks_and_a_list_of_examples_one() -> None:
    pairs, rows = [("fine", "good"), ("poor", "bad")], [["fine", "good"], ["poor", "bad"]]
    table = {"text": ["fine", "poor"], "label": ["good", "bad"]}
    for one in (pairs, rows, table, "a.tsv", Path("a.tsv"), read_examples(pairs, pair=False)):
        assert _several(one) == [one]
        assert _several([one, one]) == [one, one]
    records = [{"text": "fine", "label": "good"}, {"text": "poor", "label": "bad"}]
    assert _several(records) == [records]


def test_memory_is_kept_for_processes_that_have_just_started(monkeypatch: pytest.MonkeyPatch) -> None:
    job = FinetuneJob(start="a", task="classify", train=None, labels=None, tests={}, cells=())  # pyright: ignore
    work = Work(name="a", job=job, row="a", task=0, bytes=100_000_000)
    monkeypatch.setattr(comparison_processes, "available_memory", lambda: 1.9 * work.memory)
    processes = Processes(workers=3, threads=1)
    assert processes._fits(work)
    with subprocess.Popen(["sleep", "60"]) as started:
        processes.running[started.pid] = work, started  # pyright: ignore
        assert not processes._fits(work)
        monkeypatch.setattr(comparison_processes, "available_memory", lambda: 2.0 * work.memory)
        assert processes._fits(work)
        monkeypatch.setattr(comparison_processes, "used_memory", lambda pid: work.memory)
        monkeypatch.setattr(comparison_processes, "available_memory", lambda: 1.1 * work.memory)
        assert processes._fits(work)
        started.kill()


def test_ctrl_c_is_announced_at_once_and_another_one_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    job = FinetuneJob(start="a", task="classify", train=None, labels=None, tests={}, cells=())  # pyright: ignore
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    started: list[subprocess.Popen[bytes]] = []

    def start(self: Processes, work: Work) -> None:
        started.append(process := subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE))
        assert process.stdout is not None
        process.stdout.readline()
        self.running[process.pid] = work, process

    waited: list[float] = []
    wait = subprocess.Popen.wait

    def interrupted_wait(self: Any, timeout: float | None = None) -> int:
        if timeout is None:
            return wait(self)
        waited.append(timeout)
        raise KeyboardInterrupt  # the second Ctrl-C

    def interrupt(work: Work, event: dict[str, Any]) -> None:
        raise KeyboardInterrupt  # the first one

    monkeypatch.setattr(Processes, "_start", start)
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted_wait)
    announced: list[tuple[list[str], int]] = []
    with pytest.raises(KeyboardInterrupt):
        Processes(1, 1).run(
            [Work(name="slow", job=job, row="slow")],
            interrupt,
            lambda names: announced.append(([*names], len(waited))),
        )
    assert announced == [(["slow"], 0)]  # before any waiting
    assert len(waited) == 1
    assert started[0].returncode == -signal.SIGKILL


def test_reasons_are_one_sentence() -> None:
    assert failure_reason(keel.KeelError("a: b")) == "a: b"
    assert "out of memory" in failure_reason(MemoryError())
    assert failure_reason(RuntimeError("two\nlines")) == "RuntimeError: two lines"


def test_predictions_of_every_task_are_shown_as_text() -> None:
    shown = {
        "x": Prediction("x", 0.9),
        "x, y": [Prediction("x", 0.9), Prediction("y", 0.8)],
        "3.14": 3.14159,
        "the cake": ChoicePrediction(1, "the cake", (0.2, 0.8)),
        "Oslo": SpanAnswer("Oslo", 0.9, 3, 7),
        NO_ANSWER: SpanAnswer("", 0.9, 0, 0),
        "Anna (PER)": TaggedText("Anna ran", ("Anna", "ran"), ("B-PER", "O"), (0.9, 0.9)),
        "NOUN VERB": TaggedText("Anna ran", ("Anna", "ran"), ("NOUN", "VERB"), (0.9, 0.9)),
    }
    assert [shown_prediction(each) for each in shown.values()] == [*shown]


def test_a_failed_cell_leaves_the_other_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = read_examples(TRAIN, pair=False)
    cells = tuple(CellJob(size=80, seed=seed, path=tmp_path / f"{seed}.json") for seed in range(3))
    train_once = FineTuningRuns.train_once

    def fail_once(self: FineTuningRuns, data: EncodedExamples, dev: None, seed: int, *rest: Any, **more: Any) -> Any:
        if seed == 0:
            raise KeelError("seed 0 failed")
        return train_once(self, data, dev, seed, *rest, **more)

    monkeypatch.setattr(FineTuningRuns, "train_once", fail_once)
    job = FinetuneJob(
        start=SYSTEMS[0], task="classify", train=examples, labels=examples.labels, tests={"test": examples}, cells=cells
    )
    with pytest.raises(KeelError, match="seed 0 failed"):
        job.run(lambda event: None)
    assert [cell.path.exists() for cell in cells] == [False, True, True]


def test_seeds_of_fasttext_that_choose_other_ngrams_are_scored_on_inputs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [
        (f"the {word} boat {number}", label) for number in range(30) for word, label in (("fine", "a"), ("dull", "b"))
    ]
    train, test = (read_examples(part, pair=False) for part in (texts[:40], texts[40:]))
    choices = [1, 2]

    def choose(policy: FastTextFineTuning, labels: LabelKind, texts: int) -> list[FastText]:
        return [replace(policy.system, word_ngrams=choices[-1], buckets=64 if choices.pop() > 1 else 0)]

    monkeypatch.setattr(FastTextFineTuning, "candidate_systems", choose)
    cells = tuple(CellJob(size=40, seed=seed, path=tmp_path / f"{seed}.json") for seed in (0, 1))
    labels = Labels(kind=SingleLabel(), names=("a", "b"), counts=(20, 20))
    job = FinetuneJob(start="fasttext", task="classify", train=train, labels=labels, tests={"test": test}, cells=cells)
    job.run(lambda event: None)
    assert not choices
    assert all(len(json.loads(cell.path.read_text())["items"]["test"]) > 0 for cell in cells)
