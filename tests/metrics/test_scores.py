"""Scores against scikit-learn and scipy, intervals against what they mean."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from keel.cli.score_lines import score_lines
from keel.data.examples import Columns, Examples, Labels, read_examples
from keel.data.label_kinds import MultiLabel, Regression, SingleLabel, positive_class
from keel.data.predictions import Prediction, Predictions
from keel.errors import KeelError
from keel.metrics.bootstrap import Score
from keel.metrics.label_scores import score_labels
from keel.metrics.scores import ConfusedPair, Scores, format_main_score, format_score


def predictions(examples: Examples, estimates: np.ndarray) -> Predictions:
    return Predictions(examples.labels, estimates)


def some_classes(count: int, classes: int, seed: int) -> tuple[Examples, np.ndarray]:
    """Examples of several classes and probabilities that are right more often than not."""
    random = np.random.default_rng(seed)
    truth = np.r_[np.arange(classes), random.integers(0, classes, count - classes)]
    logits = random.normal(size=(count, classes)) + 1.2 * np.eye(classes)[truth]
    estimates = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return read_examples([(f"text {n}", str(label)) for n, label in enumerate(truth)], pair=False), estimates


def assert_by_label(scores: Scores, report: Any) -> None:
    """Equal to scikit-learn's classification report, with intervals around each value."""
    for name, each in scores.by_label.items():
        ours = each.precision.value, each.recall.value, each.f1.value, each.support
        assert ours == pytest.approx([report[name][key] for key in ("precision", "recall", "f1-score", "support")])
        for score in (each.precision, each.recall, each.f1):
            assert score.low is not None
            assert score.high is not None
            assert score.low <= score.value <= score.high
    assert {*scores.by_label} == {*scores.names}


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_class_scores_equal_scikit_learn(classes: int) -> None:
    examples, estimates = some_classes(500, classes, seed=classes)
    truth = [example.label for example in examples]
    guess = [str(number) for number in estimates.argmax(1)]
    scores = score_labels(examples, predictions(examples, estimates))
    averaging: dict[str, Any] = {"pos_label": "1"} if classes == 2 else {"average": "macro"}
    assert scores.values["accuracy"].value == pytest.approx(reference.accuracy_score(truth, guess))
    name = "binary_f1" if classes == 2 else "macro_f1"
    assert scores.values[name].value == pytest.approx(reference.f1_score(truth, guess, **averaging))
    assert_by_label(scores, reference.classification_report(truth, guess, output_dict=True))
    assert scores.values["matthews"].value == pytest.approx(reference.matthews_corrcoef(truth, guess))
    assert scores.confusion == reference.confusion_matrix(truth, guess).tolist()
    assert scores.main == "accuracy"
    assert scores.main_value == scores.values["accuracy"].value


def test_a_label_unseen_in_training_leaves_f1_binary() -> None:
    examples = read_examples([("x", "0"), ("y", "1"), ("z", "2")], pair=False)
    known = Predictions(examples[:2].labels, np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]))
    known = replace(known, labels=replace(known.labels, names=("0", "1")))
    scores = score_labels(examples, known.with_labels(known.labels.including(examples)))
    assert scores.values["binary_f1"].value == pytest.approx(2 / 3)
    assert scores.positive == "1"


def test_labels_that_never_occur_are_left_out_of_the_scores_by_label() -> None:
    pairs = [("x", "a"), ("y", "b"), ("z", "c")]
    examples = read_examples(pairs, pair=False)
    scores = score_labels(examples[:2], predictions(examples, np.eye(3))[:2])
    assert {name: each.support for name, each in scores.by_label.items()} == {"a": 1, "b": 1}


def test_the_most_frequent_confusions_of_many_labels(tmp_path: Path) -> None:
    names = [f"intent {number:02}" for number in range(14)]
    truth = [*range(14)] * 4
    guess = [*range(14)] * 3 + [(number + 1) % 14 if number < 3 else number for number in range(14)]
    guess[0] = 1  # one more example of label 0 is predicted as 1
    examples = read_examples([(f"text {n}", names[label]) for n, label in enumerate(truth)], pair=False)
    scores = score_labels(examples, predictions(examples, np.eye(14)[guess]))
    assert scores.confused[0] == ConfusedPair("intent 00", "intent 01", 2, 4)
    assert [pair.count for pair in scores.confused] == [2, 1, 1]
    assert scores.to_dict()["confused"][0] == {
        "label": "intent 00", "predicted": "intent 01", "count": 2, "support": 4
    }  # fmt: skip
    lines = [*score_lines(scores)]
    assert "intent 00 predicted as intent 01: 2 of 4" in lines
    assert not any(line.startswith("confusion matrix") for line in lines)
    assert next(line.split() for line in lines if line.split()[:2] == ["intent", "00"])[2:] == [
        "1.000", "0.500", "0.667", "4",
    ]  # fmt: skip
    scores.write(tmp_path)
    table = (tmp_path / "labels.tsv").read_text().splitlines()
    assert table[:2] == ["label\tprecision\trecall\tf1\tsupport", "intent 00\t1.0000\t0.5000\t0.6667\t4"]


def test_number_scores_equal_scipy_also_with_ties() -> None:
    random = np.random.default_rng(0)
    truth = random.integers(0, 6, 300) / 2
    estimates = np.round(truth + random.normal(size=300), 1)
    examples = read_examples(
        [("x", value) for value in truth.tolist()], pair=False, columns=Columns(labels="regression")
    )
    scores = score_labels(examples, predictions(examples, estimates))
    assert scores.values["pearson"].value == pytest.approx(stats.pearsonr(truth, estimates)[0], abs=1e-6)
    assert scores.values["spearman"].value == pytest.approx(stats.spearmanr(truth, estimates)[0], abs=1e-6)
    assert scores.main == "spearman"


def test_several_labels_equal_scikit_learn() -> None:
    random = np.random.default_rng(0)
    truth = random.random((200, 4)) < 0.4
    estimates = np.clip(0.5 + 0.3 * (truth - 0.5) + 0.3 * random.normal(size=truth.shape), 0, 1)
    names = np.array(["a", "b", "c", "d"])
    examples = read_examples([(f"text {n}", names[row].tolist()) for n, row in enumerate(truth)], pair=False)
    scores = score_labels(examples, predictions(examples, estimates))
    guess = estimates > 0.5
    assert scores.values["micro_f1"].value == pytest.approx(reference.f1_score(truth, guess, average="micro"))
    judge: Any = reference.classification_report
    report: Any = judge(truth, guess, output_dict=True, target_names=[*names], zero_division=0)
    assert_by_label(scores, report)
    assert scores.values["macro_f1"].value == pytest.approx(reference.f1_score(truth, guess, average="macro"))
    assert scores.values["accuracy"].value == pytest.approx(reference.accuracy_score(truth, guess))
    assert scores.errors[0].confidence >= scores.errors[-1].confidence > 0.5


def test_intervals_equal_resampling_one_by_one() -> None:
    examples, estimates = some_classes(200, 3, seed=5)
    truth, guess = np.array([int(str(example.label)) for example in examples]), estimates.argmax(1)
    random = np.random.default_rng(1)
    resampled = {"accuracy": [], "macro_f1": [], "matthews": []}
    for _ in range(300):
        chosen = random.integers(0, 200, 200)
        resampled["accuracy"].append((truth[chosen] == guess[chosen]).mean())
        resampled["macro_f1"].append(reference.f1_score(truth[chosen], guess[chosen], average="macro"))
        resampled["matthews"].append(reference.matthews_corrcoef(truth[chosen], guess[chosen]))
    scores = score_labels(examples, predictions(examples, estimates))
    for name, values in resampled.items():
        found = scores.values[name]
        assert (found.low, found.high) == pytest.approx(np.quantile(values, (0.025, 0.975)), abs=0.03)


def test_rank_intervals_equal_resampling_one_by_one() -> None:
    random = np.random.default_rng(2)
    truth = random.integers(0, 11, 100) / 2
    estimates = truth + 2 * random.normal(size=100)
    values = []
    for _ in range(500):
        chosen = random.integers(0, 100, 100)
        values.append(stats.spearmanr(truth[chosen], estimates[chosen])[0])
    examples = read_examples(
        [("x", value) for value in truth.tolist()], pair=False, columns=Columns(labels="regression")
    )
    found = score_labels(examples, predictions(examples, estimates)).values["spearman"]
    assert (found.low, found.high) == pytest.approx(np.quantile(values, (0.025, 0.975)), abs=0.04)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    inside = 0
    for seed in range(200):
        right = np.random.default_rng(seed).random(100) < 0.8
        examples = read_examples([("x", "0"), *[("x", "1")] * 100], pair=False)[1:]
        estimates = np.where(right[:, None], [[0.1, 0.9]], [[0.9, 0.1]])
        found: Any = score_labels(examples, predictions(examples, estimates)).values["accuracy"]
        inside += found.low <= 0.8 <= found.high
    assert 180 <= inside <= 199


def test_intervals_that_do_not_overlap_differ() -> None:
    low, middle, high = (Score(value=x, low=x - 0.1, high=x + 0.1) for x in (0.4, 0.55, 0.7))
    assert low.differs_from(high)
    assert high.differs_from(low)
    assert not low.differs_from(middle)
    assert not low.differs_from(Score(value=0.9, low=None, high=None))
    assert f"{low:.0%} or {high}" == "40% (30% to 50%) or 0.700 (0.600 to 0.800)"


def test_the_same_predictions_give_the_same_intervals() -> None:
    examples, estimates = some_classes(50, 3, seed=0)
    given = predictions(examples, estimates)
    assert score_labels(examples, given) == score_labels(examples, given)
    assert score_labels(examples, given, seed=1) != score_labels(examples, given)


def test_the_most_confident_errors_come_first() -> None:
    pairs = [("a", "no"), ("b", "yes"), ("c", "no"), ("d", "yes")]
    examples = read_examples(pairs, pair=False)
    estimates = np.array([[0.2, 0.8], [0.1, 0.9], [0.05, 0.95], [0.6, 0.4]])
    scores = score_labels(examples, predictions(examples, estimates))
    assert [(e.text, e.label, e.predicted, e.confidence) for e in scores.errors] == [
        ("c", "no", "yes", 0.95),
        ("a", "no", "yes", 0.8),
        ("d", "yes", "no", 0.6),
    ]
    assert scores.errors[0].where == "item 2 of the list"
    assert scores.confusion == [[0, 2], [1, 1]]
    examples, estimates = some_classes(500, 3, seed=0)
    assert len(score_labels(examples, predictions(examples, estimates)).errors) == 20


def test_the_positive_class_is_the_one_that_is_meant() -> None:
    assert positive_class(("entailment", "not_entailment")) == 0
    assert positive_class(("0", "1")) == 1
    assert positive_class(("ham", "spam")) == 1
    assert positive_class(("False", "True")) == 1
    assert positive_class(("a", "b", "c")) is None


def test_what_cannot_be_divided_is_zero() -> None:
    examples = read_examples([("x", "a"), ("y", "b")], pair=False)
    same = score_labels(examples, predictions(examples, np.array([[0.9, 0.1], [0.9, 0.1]])))
    assert same.values["matthews"].value == 0
    numbers = read_examples([("x", 1.5), ("y", 2.5)], pair=False, columns=Columns(labels="regression"))
    assert score_labels(numbers, predictions(numbers, np.array([1.0, 1.0]))).values["pearson"].value == 0


def test_scores_as_text_and_as_plain_data() -> None:
    examples, estimates = some_classes(100, 2, seed=0)
    scores = score_labels(examples, predictions(examples, estimates))
    assert str(scores).startswith(f"accuracy {scores.main_value:.3f} (")
    assert str(scores).endswith("on 100 examples (binary F1 is for class '1')")
    plain = scores.to_dict()
    assert plain["values"]["accuracy"]["value"] == scores.main_value
    assert (
        format_score("macro_f1", {"value": 0.52749, "low": 0.469, "high": 0.585}) == "macro F1 0.527 (0.469 to 0.585)"
    )
    assert format_main_score(scores.brief()) == format_score("accuracy", plain["values"]["accuracy"])
    assert str(scores).startswith(format_main_score(scores.brief()))
    lone = score_labels(examples[:1], predictions(examples[:1], estimates[:1])).to_dict()["values"]["accuracy"]
    assert (lone["low"], lone["high"]) == (None, None)
    assert format_score("accuracy", lone) == f"accuracy {lone['value']:.3f}"
    runs: dict[str, Any] = {"main": "accuracy", "mean": 0.7, "values": [0.6, 0.8]}
    assert format_main_score(runs) == "accuracy 0.700 (mean of 2 runs: 0.600, 0.800)"  # of an earlier version
    runs["std"] = 0.1414
    assert format_main_score(runs).startswith("accuracy 0.700 ± 0.141 (")
    assert plain["errors"][0]["where"] == scores.errors[0].where


def test_confusion_and_errors_are_written_as_tables(tmp_path: Path) -> None:
    examples = read_examples([("a\tfilm\n", "no"), ("b", "yes")], pair=False)
    scores = score_labels(examples, predictions(examples, np.array([[0.25, 0.75], [0.1, 0.9]])))
    scores.write(tmp_path / "report")
    assert (tmp_path / "report/confusion.tsv").read_text() == "true \\ predicted\tno\tyes\nno\t0\t1\nyes\t0\t1\n"
    assert (tmp_path / "report/errors.tsv").read_text().splitlines() == [
        "where\ttext\tsecond\tlabel\tpredicted\tconfidence",
        "item 0 of the list\ta film\tNone\tno\tyes\t0.75",
    ]
    with pytest.raises(KeelError, match="cannot be written to"):
        scores.write(tmp_path / "report/errors.tsv")


def test_predictions_read_as_labels_names_or_numbers() -> None:
    one = Predictions(Labels(kind=SingleLabel(), names=("bad", "good")), np.array([[0.012, 0.988], [0.7, 0.3]]))
    assert repr(one[0]) == "Prediction(label='good', confidence=0.99)"
    assert [label.label for label in one if isinstance(label, Prediction)] == ["good", "bad"]
    assert one.to_dicts()[1] == {"label": "bad", "probability": 0.7}
    several = Predictions(
        Labels(kind=MultiLabel(), names=("a", "b", "c")), np.array([[0.6, 0.2, 0.9], [0.1, 0.1, 0.1]])
    )
    assert list(several) == [[Prediction("c", 0.9), Prediction("a", 0.6)], []]
    assert several.to_dicts()[1] == {"labels": []}
    number = Predictions(Labels(kind=Regression()), np.array([1.5, 2.0]))
    assert list(number) == [1.5, 2.0]
    assert number.to_dicts()[0] == {"number": 1.5}
    assert list(one[1:]) == [Prediction("bad", 0.7)]
