"""Scores by item add up to the scores that `evaluate` reports, for every kind of label."""

from collections.abc import Callable

import numpy as np
import pytest

from keel.data.examples import Examples, read_examples
from keel.metrics.item_scores import ItemScores, item_scores
from keel.tasks.task import Task
from tests.tiny_task import sentences

LABELS: dict[str, Callable[[int, str], object]] = {
    "accuracy": lambda number, label: label,
    "micro_f1": lambda number, label: [label, "x"] if number % 3 else [label],
    "spearman": lambda number, label: float(number % 7) / 3,
}


@pytest.mark.parametrize("name", LABELS)
def test_the_score_of_all_items_is_the_main_score(name: str, make_task: Callable[..., Task]) -> None:
    pairs = sentences(60, ["good", "bad"])
    examples = read_examples([(text, LABELS[name](n, label)) for n, (text, label) in enumerate(pairs)], pair=False)
    task = make_task(examples).eval()
    predictions = task.predict(examples)
    found, scores = item_scores(examples, predictions), task.score(examples, predictions)
    assert found.name == scores.main == name
    assert found.value == pytest.approx(scores.main_value)
    again = ItemScores.from_dict(found.to_dict())
    assert again.name == found.name
    assert np.array_equal(again.counts, found.counts)
    assert found.is_mean == (name == "accuracy")


@pytest.mark.parametrize("tags", [("B-PER", "I-PER", "O"), ("NOUN", "VERB", "ADJ")], ids=["entities", "words"])
def test_tags_are_scored_by_sentence(tags: tuple[str, ...], make_task: Callable[..., Task]) -> None:
    rng = np.random.default_rng(0)
    rows = [(["the", "film", "was", "red"], [tags[n] for n in rng.integers(0, 3, 4)]) for _ in range(20)]
    from keel.tasks import TASKS

    examples: Examples = TASKS["tag"].read_labelled(rows)
    task = make_task_of_tags(make_task, examples)
    predictions = task.predict(examples)
    found, scores = item_scores(examples, predictions), task.score(examples, predictions)
    assert found.name == scores.main
    assert found.value == pytest.approx(scores.main_value)
    assert len(found) == 20


def make_task_of_tags(make_task: Callable[..., Task], examples: Examples) -> Task:
    from keel.tasks.tag import TokenClassification

    base = make_task(read_examples(sentences(8, ["good", "bad"]), pair=False))
    return TokenClassification(base.system, base.encoder, base.tokenizer, examples.labels).eval()


def test_a_resample_weighs_the_items() -> None:
    ratio = ItemScores.ratio("entity_f1", [2, 0, 4], [4, 2, 4])
    assert ratio.values(np.array([[1, 1, 1], [2, 0, 0], [0, 2, 0]])).tolist() == [0.6, 0.5, 0.0]
    assert ratio.by_item.tolist() == [0.5, 0.0, 1.0]
