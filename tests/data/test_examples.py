"""Labels as numbers, and splits that keep every label in proportion."""

from collections import Counter

import pytest
import torch

from keel.data.example_splits import cross_validation_folds, split_validation
from keel.data.examples import Columns, Examples, Labels, read_examples
from keel.data.label_kinds import MultiLabel, Regression, SingleLabel
from keel.data.tagged_sentences import read_tagged_sentences
from keel.errors import KeelError


def of(labels: list[str], prefix: str = "t") -> Examples:
    return read_examples([(f"{prefix}{number}", label) for number, label in enumerate(labels)], pair=False)


def test_labels_become_numbers_in_the_order_of_their_names() -> None:
    examples = of(["b", "a", "c", "a"])
    assert examples.labels == Labels(kind=SingleLabel(), names=("a", "b", "c"))
    assert examples.labels.targets(examples).tolist() == [1, 0, 2, 0]
    several = read_examples([("x", ["a", "c"]), ("y", []), ("z", ["b"])], pair=False)
    assert several.labels.targets(several).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    numbers = read_examples([("x", 0.5), ("y", 2)], pair=False, columns=Columns(labels="regression"))
    assert torch.equal(numbers.labels.targets(numbers), torch.tensor([0.5, 2.0]))


def test_a_label_unseen_in_training_is_named_with_its_place() -> None:
    with pytest.raises(KeelError, match=r"item 1 of the list: the label 'c' did not occur in training"):
        of(["a", "b"]).labels.targets(of(["a", "c"]))


def test_one_class_or_none_is_refused() -> None:
    with pytest.raises(KeelError, match="only one class, 'a'"):
        _ = of(["a", "a"]).labels
    with pytest.raises(KeelError, match="has no labels"):
        _ = read_examples(["x", "y"], pair=False).labels


def test_labels_of_another_kind_are_refused() -> None:
    labels = of(["a", "b"]).labels
    with pytest.raises(KeelError, match=r"item 0 of the list: the label 0\.5 is not a single class"):
        labels.targets(read_examples([("x", 0.5)], pair=False, columns=Columns(labels="regression")))
    with pytest.raises(KeelError, match=r"the label \('a', 'b'\) is not a single class"):
        labels.targets(read_examples([("x", ["b", "a"])], pair=False))
    with pytest.raises(KeelError, match="the label 'good' is not a number"):
        Labels(kind=Regression()).targets(of(["good"]))
    with pytest.raises(KeelError, match="has no labels to compare with"):
        labels.targets(read_examples(["x"], pair=False))


def test_labels_are_read_as_in_training() -> None:
    """A test file may look otherwise than the training file did: whole scores only, or one label each."""
    assert Labels(kind=Regression()).targets(of(["5.000", "4"])).tolist() == [5.0, 4.0]
    assert Labels(kind=MultiLabel(), names=("a", "b")).targets(of(["a", "b"])).tolist() == [[1, 0], [0, 1]]


def test_a_tenth_is_held_out_in_proportion() -> None:
    examples = of(["a"] * 600 + ["b"] * 300 + ["c"] * 100)
    learned, tested = split_validation(examples, 0.1, seed=3)
    assert Counter(example.label for example in tested) == {"a": 60, "b": 30, "c": 10}
    assert {example.text for example in learned} | {example.text for example in tested} == {e.text for e in examples}
    assert len(learned) + len(tested) == 1000
    assert split_validation(examples, 0.1, seed=3)[1] == tested
    assert split_validation(examples, 0.1, seed=4)[1] != tested


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_no_label_is_only_tested(share: float) -> None:
    examples = of(["a"] * 20 + ["b", "c", "d", "d", "e"])
    for seed in range(20):
        learned, tested = split_validation(examples, share, seed)
        assert {example.label for example in learned} == set("abcde")
        assert tested.labels == examples.labels


@pytest.mark.parametrize("odd", ["B-LOC", "S-LOC"])  # before and after the others in the order of labels
def test_another_is_held_out_for_one_that_has_the_only_label_of_its_kind(odd: str) -> None:
    examples = read_tagged_sentences([(["a", "b"], ["B-PER", "E-PER"])] * 10 + [(["a"], [odd])])
    for seed in range(20):
        learned, tested = split_validation(examples, 0.1, seed)
        assert [example.names for example in tested] == [("B-PER", "E-PER")]
        assert len(learned) == 10
    learned, tested = split_validation(of(["a"] * 5 + ["b"] * 5 + list("cdefghijkl")), 0.5, seed=0)
    assert len(tested) == 8
    assert {example.label for example in learned} == set("abcdefghijkl")


def test_nothing_is_held_out_where_each_has_a_label_of_its_own() -> None:
    examples = read_tagged_sentences([(["a", "b"], ["DET", tag]) for tag in ("NOUN", "VERB", "ADJ", "ADV", "NUM")])
    assert [len(part) for part in split_validation(examples, 0.4, seed=0)] == [5, 0]


def test_folds_test_every_example_once_and_spread_the_labels() -> None:
    examples = of(["a"] * 50 + ["b"] * 10)
    parts = list(cross_validation_folds(examples, 5, seed=1))
    assert sorted(example.text for _, tested in parts for example in tested) == sorted(e.text for e in examples)
    for learned, tested in parts:
        assert Counter(example.label for example in tested) == {"a": 10, "b": 2}
        assert not {e.text for e in learned} & {e.text for e in tested}
        assert learned.labels == examples.labels


@pytest.mark.parametrize("seed", range(5))
def test_duplicates_are_on_one_side_of_a_split(seed: int) -> None:
    texts = [f"text {number % 40}{' ' * (number // 40)}" for number in range(200)] + ["the same"] * 100
    examples = read_examples([(text, "ab"[len(text) % 2]) for text in texts], pair=False)  # some with both labels
    learned, tested = split_validation(examples, 0.1, seed)
    assert {*learned.text_keys()}.isdisjoint(tested.text_keys())
    assert 10 <= len(tested) <= 30  # a text with a third of the rows stays in training
    assert len(learned) + len(tested) == 300
    for learned, tested in cross_validation_folds(examples, 4, seed):
        assert {*learned.text_keys()}.isdisjoint(tested.text_keys())


def test_duplicates_are_divided_where_there_are_too_few_texts() -> None:
    examples = read_examples([("good", "a"), ("bad", "b")] * 10, pair=False)
    assert [len(part) for part in split_validation(examples, 0.1, seed=0)] == [18, 2]
    assert len(list(cross_validation_folds(examples, 5, seed=0))) == 5


def test_numbers_are_split_at_random() -> None:
    examples = read_examples([(f"t{n}", n / 10) for n in range(100)], pair=False, columns=Columns(labels="regression"))
    learned, tested = split_validation(examples, 0.2, seed=0)
    assert (len(learned), len(tested)) == (80, 20)
    assert [len(tested) for _, tested in cross_validation_folds(examples, 3, seed=0)] == [34, 33, 33]


def test_impossible_splits_are_refused() -> None:
    with pytest.raises(KeelError, match="10% of 2 examples cannot be held out"):
        split_validation(of(["a", "b"]), 0.1, seed=0)
    with pytest.raises(KeelError, match="10% of 1 example cannot be held out"):
        split_validation(of(["a"]), 0.1, seed=0)
    with pytest.raises(KeelError, match="cannot be split into 5 folds"):
        next(cross_validation_folds(of(["a", "b"]), 5, seed=0))


def test_decimals_that_do_not_recur_are_numbers() -> None:
    rows = [(f"text {number}", f"{number * 0.37:.2f}") for number in range(40)]
    assert read_examples(rows, pair=False).kind == Regression()
    with pytest.raises(KeelError, match=r"'high' is not a number, though most"):
        read_examples([*rows, ("text", "high")], pair=False)
