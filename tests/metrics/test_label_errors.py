"""Likely label errors: planted ones are found and ranked first."""

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keel
from keel.data.examples import read_examples
from keel.data.predictions import Predictions
from keel.errors import UsageError
from keel.metrics.label_errors import find_label_errors

WORDS = {"sea": ["boat", "net", "sail", "wave"], "food": ["cake", "soup", "bread", "oven"], "law": ["court", "judge"]}
NOISE = 0.08


def noisy(count: int, seed: int) -> tuple[list[tuple[str, str]], set[int]]:
    """Texts with labels, some of which are wrong, and which ones."""
    rng = random.Random(seed)
    rows, wrong = [], set()
    for number in range(count):
        label = rng.choice([*WORDS])
        words = rng.choices(["the", "a", "old", "new", "red", "two"], k=5) + rng.choices(WORDS[label], k=2)
        words += rng.choices([word for words in WORDS.values() for word in words], k=rng.random() < 0.3)
        if rng.random() < NOISE:
            label, truth = rng.choice([each for each in WORDS if each != label]), label
            assert truth != label
            wrong.add(number)
        rows.append((" ".join(words), label))
    return rows, wrong


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[keel.Model, Path]:
    path = write(tmp_path_factory.mktemp("noise") / "train.tsv", noisy(600, seed=0)[0])
    return keel.finetune("onehot", path, dev=None), path


def precision_at(scores: keel.Scores, wrong: set[int], count: int) -> float:
    """Share of planted errors among the first suspects; the rows of a file start at line 2."""
    assert scores.suspects is not None
    found = [int(each.where.rpartition(":")[2]) - 2 for each in scores.suspects.found[:count]]
    assert len(found) == count
    return float(np.mean([number in wrong for number in found]))


def test_planted_errors_of_a_new_file_are_ranked_first(model: tuple[keel.Model, Path], tmp_path: Path) -> None:
    rows, wrong = noisy(600, seed=1)
    events: list[Any] = []
    scores = keel.evaluate(
        model[0], write(tmp_path / "new.tsv", rows), suspects=30, out=tmp_path / "out", on_event=events.append
    )
    assert len(wrong) > 40
    assert precision_at(scores, wrong, 30) >= 0.95
    assert not any("has seen" in event.get("text", "") for event in events)
    suspects: Any = scores.suspects
    assert (len(suspects.found), suspects.count) == (30, 600)
    assert suspects.total == pytest.approx(len(wrong), rel=0.3)
    with open(tmp_path / "out" / "suspects.csv", newline="") as file:
        table = [*csv.DictReader(file)]
    first = suspects.found[0]
    assert table[0]["where"] == first.where
    assert (table[0]["label"], table[0]["predicted"]) == (first.label, first.predicted)
    assert float(table[0]["confidence"]) == first.confidence


def test_a_note_reports_that_the_model_has_seen_the_file(model: tuple[keel.Model, Path]) -> None:
    for data in (model[1], read_examples(noisy(600, seed=0)[0], pair=False)):
        events: list[Any] = []
        scores = keel.evaluate(model[0], data, suspects=5, on_event=events.append)
        assert scores.suspects is not None
        assert any("has seen" in event.get("text", "") for event in events)


def test_confident_learning_by_hand() -> None:
    examples = read_examples([("p", "a"), ("q", "a"), ("r", "a"), ("s", "b"), ("t", "b")], pair=False)
    estimates = np.array([[0.9, 0.1], [0.1, 0.9], [0.45, 0.55], [0.2, 0.8], [0.3, 0.7]])
    # The thresholds are the mean probabilities of the given labels: 0.483 for a, 0.75 for b; 0.55 is below.
    found = find_label_errors(examples, Predictions(examples.labels, estimates), 10)
    assert [(each.text, each.label, each.predicted, each.confidence) for each in found.found] == [("q", "a", "b", 0.9)]
    assert (found.total, found.count) == (1, 5)


def test_several_labels() -> None:
    examples = read_examples([("p", ["x", "y"]), ("q", ["x"]), ("r", ["x", "y"]), ("s", ["x", "y"])], pair=False)
    estimates = np.array([[0.9, 0.8], [0.9, 0.95], [0.9, 0.9], [0.9, 0.9]])
    found = find_label_errors(examples, Predictions(examples.labels, estimates), 10)
    assert [(each.text, each.label, each.predicted) for each in found.found] == [("q", ("x",), ("x", "y"))]


def test_tags_of_words(tmp_path: Path) -> None:
    sentences = ["the O\nboat NN\nsinks VB\n", "the O\ncook NN\nsings VB\n"] * 20
    (tmp_path / "train.conll").write_text("\n".join(sentences))
    (tmp_path / "new.conll").write_text("\n".join([*sentences, "the O\nboat VB\nsinks VB\n"]))
    model = keel.finetune("word2vec", tmp_path / "train.conll", task="tag", dev=None, epochs=30, width=16, lr=0.05)
    suspects: Any = keel.evaluate(model, tmp_path / "new.conll", suspects=3).suspects
    assert suspects.total == 1
    assert (suspects.found[0].label, suspects.found[0].predicted) == ("VB", "NN")
    assert suspects.found[0].text == "the [boat] sinks"
    assert suspects.count == 123


def test_what_has_no_labels_is_refused_before_the_data_is_read() -> None:
    numbers = keel.finetune("onehot", [("a b", 1.5), ("b c", 2.5), ("c d", 0.5)], dev=None, labels="regression")
    with pytest.raises(UsageError, match="suspects"):
        keel.evaluate(numbers, "absent.tsv", suspects=1)
