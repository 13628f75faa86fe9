"""The classifier on a frozen encoder is solved for: logistic or ridge regression on the vectors that it reads."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from keel.api.finetuning import finetune
from keel.cli.model_info import _differences
from keel.data.corpus import Corpus
from keel.data.examples import Columns
from keel.data.tokenizer_training import TokenizerSettings, train_tokenizer
from keel.model import Model
from keel.systems.bert import Bert
from keel.tasks import task
from keel.tasks.classify import TextClassification
from keel.training import linear_solver
from keel.training.linear_solver import DENSE_STRENGTHS, SparseRows, fit_linear

WORDS = ["sailor", "judge", "anchor", "bread", "boat", "river", "stone", "lamp"]


def labelled(count: int) -> list[tuple[str, str]]:
    texts = [" ".join(random.Random(number).choices(WORDS, k=6)) for number in range(count)]
    return [(text, "ship" if text.count("boat") + text.count("anchor") > 1 else "land") for text in texts]


@pytest.fixture(scope="module")
def bert() -> Model:
    tokenizer = train_tokenizer(Corpus.of([" ".join(WORDS)] * 5), TokenizerSettings(vocab_size=80))
    system = Bert(layers=1, width=64, max_positions=16, sequence_length=16)
    torch.manual_seed(0)
    return Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)


def regularised_slope(
    model: Model, examples: list[Any], loss: Callable[[Tensor, Tensor], Tensor], kind: Any = "auto"
) -> float:
    """The largest slope of the mean loss + l2 / 2n ||W||^2 of the scaled vectors, with the strength of the run."""
    task = model.task
    assert isinstance(task, TextClassification)
    task.frozen = True
    data = task.encode_examples(task.read_examples(examples, Columns(labels=kind)))
    vectors = task.classifier_inputs(data)
    scale = (vectors - vectors.mean(0)).square().sum(1).mean().sqrt()
    weight, bias = task.classifier.weight.detach() * scale, task.classifier.bias.detach()
    weight.requires_grad_(True)
    bias = (bias + weight.detach() @ vectors.mean(0) / scale).requires_grad_(True)
    assert data.targets is not None
    logits = (vectors - vectors.mean(0)) / scale @ weight.T + bias
    loss(logits, data.targets).mean().backward()
    assert weight.grad is not None
    assert bias.grad is not None
    # Where the slope of the loss is -l2 / n * W, the ratio is the same for every weight.
    strength = -(weight.grad * weight.detach()).sum() / weight.detach().square().sum()
    assert strength >= -linear_solver.TOLERANCE
    return float(max((weight.grad + strength * weight.detach()).abs().max(), bias.grad.abs().max()))


def test_more_vectors_than_are_cached_are_computed(bert: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = labelled(40)
    cached = finetune(bert, examples, freeze=True, dev=None, progress=False)
    monkeypatch.setattr(task, "MAX_CACHED", 0)
    computed = finetune(bert, examples, freeze=True, dev=None, progress=False)
    assert computed.predict([text for text, _ in examples]) == cached.predict([text for text, _ in examples])


def test_a_dense_matrix_gives_the_solution_of_the_same_sparse_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_solver, "DENSE_TOLERANCE_CHANGE", linear_solver.TOLERANCE_CHANGE)
    dense = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    targets = (dense[:, 0] + 0.3 * dense[:, 1] > 0).long()
    sparse = SparseRows(torch.arange(0, 241, 6), torch.arange(6).repeat(40), dense.flatten(), 6)

    def losses(logits: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    found = [fit_linear(rows, targets, 2, losses, 0.0, 0, groups=np.arange(40)) for rows in (dense, sparse)]
    assert found[0].l2 == found[1].l2
    torch.testing.assert_close(found[0].weight, found[1].weight, atol=1e-4, rtol=1e-3)


def test_the_weakest_strength_of_dense_vectors_is_solved_to_the_end() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(3000, 20, generator=generator), torch.randn(20, 3, generator=generator)
    targets = (rows @ weight + 0.1 * torch.randn(3000, 3, generator=generator)).argmax(1)

    def losses(logits: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    def choose_weakest(errors: Tensor, losses: Tensor) -> int:
        return len(losses) - 1

    found = fit_linear(
        rows / 20**0.5, targets, 3, losses, 0.0, 0,
        groups=np.arange(3000), strengths=DENSE_STRENGTHS, choose=choose_weakest,
    )  # fmt: skip
    assert found.l2 == DENSE_STRENGTHS[-1]

    def objective() -> Tensor:
        total = losses(rows.double() / 20**0.5 @ exact[:-1] + exact[-1], targets).sum()
        return total + found.l2 / 2 * exact[:-1].square().sum()

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = objective()
        total.backward()
        return total

    exact = torch.cat([found.weight, found.bias[None]]).double().requires_grad_(True)
    optimizer = torch.optim.LBFGS([exact], max_iter=1000, tolerance_change=1e-12, line_search_fn="strong_wolfe")
    before = objective().item()
    optimizer.step(closure)
    assert before < 1.001 * objective().item()


def test_a_single_strength_of_few_errors_is_not_chosen() -> None:
    counts = [9, 5, 9, 7, 6, 7, 9, 9]  # 5 may be luck: its neighbours are bad
    errors = torch.stack([(torch.arange(20) < count).float() for count in counts])
    losses = torch.arange(8.0)
    assert linear_solver.within_one_standard_error(errors, losses) == 1
    assert linear_solver.least_smoothed_error(errors, losses) == 4
    tied = torch.stack([(torch.arange(20) < count).float() for count in [3, 3, 3, 3, 9]])
    assert linear_solver.least_smoothed_error(tied, torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0])) == 2
    assert linear_solver.least_smoothed_error(tied[:1], torch.ones(1)) == 0


def test_classes_on_a_frozen_encoder_get_the_strength_of_least_smoothed_error(
    bert: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[Tensor, Tensor]] = []
    cross_validate = linear_solver._Problem.cross_validate

    def record(*arguments: Any) -> Tensor:
        found = cross_validate(*arguments)
        measured.append((found[1].sum(2), found[0].sum((1, 2))))
        return found

    monkeypatch.setattr(linear_solver._Problem, "cross_validate", record)
    random.seed(0)
    noisy = [(text, label if random.random() < 0.7 else "land") for text, label in labelled(120)]
    events: list[dict[str, Any]] = []
    finetune(bert, noisy, freeze=True, progress=False, on_event=events.append)
    expected = DENSE_STRENGTHS[linear_solver.least_smoothed_error(*measured[0])]
    assert expected != DENSE_STRENGTHS[linear_solver.within_one_standard_error(*measured[0])]
    assert any(event.get("text", "").startswith(f"L2 regularisation {expected:g} ") for event in events)


def test_a_frozen_encoder_gets_logistic_regression_on_its_vectors(bert: Model, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    examples = labelled(200)
    model = finetune(bert, examples, freeze=True, out=tmp_path / "m", on_event=events.append)
    assert any("chosen by cross-validation" in event.get("text", "") for event in events)
    assert model.card.steps == 1
    assert model.card.scores.keys() == {"cross-validation"}, "all examples are used"
    assert regularised_slope(model, examples, lambda x, y: torch.nn.functional.cross_entropy(x, y)) < 1e-3
    assert _differences(Model.load(tmp_path / "m")) == {}
    again = finetune(bert, examples, freeze=True)
    weights = [task.classifier.weight for task in (again.task, model.task) if isinstance(task, TextClassification)]
    assert torch.equal(*weights)


@pytest.mark.parametrize("settings", [{"epochs": 2}, {"lr": 1e-2}, {"steps": 3}, {"mix": True}, {"pool": "default"}])
def test_settings_of_gradient_descent_and_other_heads_are_trained(bert: Model, settings: dict[str, Any]) -> None:
    model = finetune(bert, labelled(40), freeze=True, dev=None, **settings)
    assert model.card.recipe["train"]["optimizer"] == "adamw"
    assert model.card.steps > 1


def test_numbers_are_fitted_by_ridge_regression(bert: Model) -> None:
    examples = [(text, 10.0 + text.count("boat")) for text, _ in labelled(200)]
    model = finetune(bert, examples, freeze=True, dev=None, labels="regression")
    assert regularised_slope(model, examples, lambda x, y: (x[:, 0] - y).square(), "regression") < 1e-3
    guesses = np.array([float(found) for found in model.predict([text for text, _ in examples])])
    assert np.corrcoef(guesses, [number for _, number in examples])[0, 1] > 0.9


@pytest.mark.parametrize("encoding", ["siamese", "cross"])
def test_pairs_are_compared_by_their_vectors(bert: Model, encoding: Literal["siamese", "cross"]) -> None:
    texts = [text for text, _ in labelled(160)]
    pairs = [(one, one if number % 2 else two, ["other", "same"][number % 2])
             for number, (one, two) in enumerate(zip(texts, texts[::-1], strict=True))]  # fmt: skip
    model = finetune(bert, pairs, task="pair", freeze=True, dev=None, pair_encoding=encoding)
    assert regularised_slope(model, pairs, lambda x, y: torch.nn.functional.cross_entropy(x, y)) < 1e-3
    if encoding == "siamese":
        right = [found.label == label for found, (*_, label) in zip(
            model.predict([(one, two) for one, two, _ in pairs]), pairs, strict=True)]  # fmt: skip
        assert np.mean(right) > 0.9


def test_the_windows_of_a_long_text_are_averaged(bert: Model) -> None:
    examples = [(f"{text} {text[::-1]} {text} {text}", label) for text, label in labelled(60)]
    model = finetune(bert, examples, freeze=True, dev=None)
    task = model.task
    assert isinstance(task, TextClassification)
    task.frozen = True
    data = task.encode_examples(task.read_examples(examples))
    assert len(data.example_indices) > len(examples)
    expected = task.classifier_inputs(data) @ task.classifier.weight.T + task.classifier.bias
    torch.testing.assert_close(task.predict_example_logits(data), expected.detach(), atol=1e-4, rtol=1e-4)
