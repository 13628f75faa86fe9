"""Class weights in the loss; thresholds and temperatures that are tuned on dev and stored."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

import keel
from keel.data.examples import Examples, read_examples
from keel.data.predictions import Prediction, Predictions
from keel.errors import UsageError
from keel.tasks.classify import TextClassification

MakeTask = Callable[..., TextClassification]


def messages(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """One in eight is spam; a quarter of its words are those of spam, and some of ham too."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        spam = number % 8 == 0
        words = rng.choices(["we", "you", "they", "see", "send", "read", "write", "talk"], k=6)
        words += [word for word in ("prize", "win", "free") if rng.random() < (0.5 if spam else 0.12)]
        found.append((" ".join(words), "spam" if spam else "ham"))
    return found


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[keel.Model, Path, list[dict[str, Any]]]:
    folder, events = tmp_path_factory.mktemp("models") / "spam", []
    model = keel.finetune(
        "onehot", messages(400), out=folder, dev=messages(400, seed=1), threshold="auto", calibrate=True,
        on_event=events.append,
    )  # fmt: skip
    return model, folder, events


def test_balanced_weights_are_those_of_scikit_learn(make_task: MakeTask) -> None:
    examples = read_examples([*messages(40), ("odd", "odd")], pair=False)
    task = make_task(examples, class_weights="balanced")
    task.setup(task.encode_examples(examples))
    expected = compute_class_weight("balanced", classes=np.unique(examples.values), y=examples.values)
    logits, targets = torch.randn(len(examples), 3), task.labels.targets(examples)
    losses = F.cross_entropy(logits, targets, torch.from_numpy(expected).float(), reduction="none")
    assert torch.allclose(task.example_losses(logits, targets), losses)
    assert "class_weights" not in task.settings


def test_weights_by_label_have_a_mean_of_one(make_task: MakeTask) -> None:
    examples = read_examples(messages(40), pair=False)
    task = make_task(examples, class_weights="spam=3")
    task.setup(task.encode_examples(examples))
    assert task.class_weights is not None
    assert (task.class_weights[1] / task.class_weights[0]).item() == pytest.approx(3)
    assert task.class_weights[task.labels.targets(examples)].mean().item() == pytest.approx(1)


def test_balanced_weights_of_several_labels_make_each_a_problem_of_equal_halves(make_task: MakeTask) -> None:
    examples = read_examples([("a", ["x", "y"]), ("b", ["y"]), ("c", ["y"]), ("d", ["z", "y"])] * 3, pair=False)
    task = make_task(examples, class_weights="balanced")
    task.setup(task.encode_examples(examples))
    weights, targets = task.class_weights, task.labels.targets(examples)
    assert weights is not None
    present, absent = targets * weights[1], (1 - targets) * weights[0]
    assert present.mean(0)[[0, 2]].tolist() == absent.mean(0)[[0, 2]].tolist() == pytest.approx([0.5, 0.5])
    assert task.example_losses(torch.zeros(12, 3), targets).mean().isfinite()


def test_class_weights_raise_the_recall_of_the_rare_class() -> None:
    recall = {}
    for weights in ("none", "balanced"):
        model = keel.finetune("onehot", messages(400), dev=None, class_weights=weights)
        recall[weights] = keel.evaluate(model, messages(400, seed=2)).by_label["spam"].recall.value
    assert recall["balanced"] > recall["none"] + 0.2


def test_the_threshold_raises_f1_and_is_stored_with_the_temperature(tuned: Any) -> None:
    model, folder, events = tuned
    stored = json.loads((folder / "config.json").read_text())["keel"]["task"]
    assert (stored["threshold"], stored["temperature"]) == (model.task.threshold, model.task.temperature)
    assert "calibrate" not in stored
    assert any("threshold" in event.get("text", "") for event in events)
    again = keel.Model.load(folder)
    test = messages(400, seed=2)
    scores = keel.evaluate(again, test)
    task: Any = again.task
    examples = task.read_examples(test)
    plain = task.score(examples, replace(task.predict(examples), threshold=0.5))
    assert scores.values["binary_f1"].value > plain.values["binary_f1"].value + 0.05
    assert scores.calibration_error is not None
    assert scores.calibration_error < 0.1
    assert again.predict("free prize win").label == "spam"


def test_logits_do_not_depend_on_temperature_and_confidence_does(tuned: Any) -> None:
    task: Any = tuned[0].task
    examples = read_examples(messages(20), pair=False)
    logits, estimates = task.predict_example_logits(examples), task.predict(examples).estimates
    assert task.temperature != 1
    assert torch.allclose((logits / task.temperature).softmax(1), torch.from_numpy(estimates))


def test_transformers_computes_the_logits_of_a_calibrated_folder(make_task: MakeTask, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    examples = read_examples(messages(16), pair=False)
    task = make_task(examples, temperature=2.5, threshold=0.3)
    keel.Model(system=task.system, encoder=task.encoder, tokenizer=task.tokenizer, task=task).save(tmp_path / "m")
    again: Any = keel.Model.load(tmp_path / "m", device="cpu").task
    assert (again.temperature, again.threshold) == (2.5, 0.3)
    theirs: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m").eval()
    ids = again.system.build_inputs(again.tokenizer, again.tokenizer.encode(examples[0].text).ids).ids
    logits = again.predict_example_logits(examples[:1])
    assert torch.allclose(theirs(torch.tensor([ids])).logits, logits, atol=1e-5)
    estimates = torch.from_numpy(again.predict(examples[:1]).estimates)
    assert torch.allclose((logits / 2.5).softmax(1), estimates)


def test_the_threshold_of_a_rare_class_can_be_loaded(make_task: MakeTask, tmp_path: Path) -> None:
    examples = read_examples(messages(16), pair=False)
    task = make_task(examples, threshold="auto")
    with torch.no_grad():
        task.classifier.bias.copy_(torch.tensor([20.0, 0.0]))  # the probability of spam is about 2e-9
    task.tune_decisions(examples)
    assert 0 < task.threshold < 1e-6
    keel.Model(system=task.system, encoder=task.encoder, tokenizer=task.tokenizer, task=task).save(tmp_path / "m")
    again: Any = keel.Model.load(tmp_path / "m", device="cpu").task
    assert again.threshold == task.threshold


def test_calibration_keeps_a_threshold_that_was_given(make_task: MakeTask) -> None:
    examples = read_examples(messages(16), pair=False)
    task = make_task(examples, threshold=0.9, calibrate=True)
    task.tune_decisions(examples)
    assert task.temperature != 1
    assert task.threshold == task.settings["threshold"] == 0.9
    assert task.predict(examples).threshold == 0.9


def test_a_threshold_decides_between_two_classes_and_among_several_labels() -> None:
    single = read_examples([("a", "ham"), ("b", "spam")], pair=False)
    low = Predictions(single.labels, np.array([[0.7, 0.3], [0.9, 0.1]]), threshold=0.2)
    assert [*low] == [Prediction("spam", 0.3), Prediction("ham", 0.9)]
    several = read_examples([("a", ["x"]), ("b", ["y"])], pair=False)
    both = Predictions(several.labels, np.array([[0.3, 0.4], [0.1, 0.9]]), threshold=0.25)
    assert [[each.label for each in labels] for labels in both] == [["y", "x"], ["y"]]  # type: ignore
    assert both[:1].decide().tolist() == [[True, True]]


def three() -> Examples:
    return read_examples([(f"text {name}", name) for name in "abc"] * 4, pair=False)


@pytest.mark.parametrize(
    ("data", "settings", "flag"),
    [
        (three, {"threshold": 0.3}, "threshold"),
        (three, {"class_weights": "d=2"}, "class-weights"),
        (three, {"class_weights": "a"}, "class-weights"),
        (three, {"class_weights": "a=-1"}, "class-weights"),
        (three, {"calibrate": True, "dev": None}, "calibrate"),
        (lambda: messages(8), {"threshold": "auto", "dev": None}, "threshold auto"),
        (lambda: messages(8), {"threshold": 1.5}, "threshold"),
        (lambda: [("a", 1.5), ("b", 2.5)], {"calibrate": True, "labels": "regression", "dev": [("a", 1.5)]}, "calibr"),
        (
            lambda: [("a", 1.5), ("b", 2.5)],
            {"class_weights": "balanced", "labels": "regression", "dev": None},
            "class-w",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(data: Any, settings: dict[str, Any], flag: str) -> None:
    settings = {"dev": "25%", **settings}
    with pytest.raises(UsageError, match=flag.replace("-", "[-_]")):
        keel.finetune("onehot", data(), **settings)


def test_fasttext_has_no_class_weights() -> None:
    with pytest.raises(UsageError, match="fasttext"):
        keel.finetune("fasttext", messages(16), dev=None, class_weights="balanced")
