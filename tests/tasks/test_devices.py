"""What a task learns on one device it says on another: the same code on a CPU and, where there is one, on a GPU."""

import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import keel
from keel.model import Model
from keel.systems.gpt import Gpt
from keel.systems.seq2seq import Seq2seq
from keel.systems.system import System
from keel.systems.transformer import Transformer
from keel.tasks import TASKS
from tests.tasks.task_sample import sample_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
GPT = Gpt(layers=1, width=32, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0, attention_dropout=0.0)
CORPUS = ["the film was old . the house was red .", "a story of an actor . it was long and quiet ."] * 20
SETTINGS: dict[str, dict[str, Any]] = {
    "classify": {"lm_loss": 0.5},
    "pair": {"orders": "both"},
    "answer": {"steps": 150},
}
NUMBERS = {"one": "Eins", "two": "Zwei", "three": "Drei", "four": "Vier", "five": "Fünf"}
WRITERS: list[System] = [
    Transformer(layers=1, decoder_layers=1, width=32, head_dim=16, max_positions=24, dropout=0.0, label_smoothing=0.01),
    replace(Seq2seq(dropout=0.0), width=32),
]


def finetune_both(system: Any, data: Any, device: str, out: Path, **settings: Any) -> tuple[Model, Model]:
    """What was made of a system on a device, saved and loaded again, there and on the CPU, in full precision; its
    losses were numbers, and fell."""
    losses: list[float] = []

    def on_event(event: dict[str, Any]) -> None:
        losses.extend([event["loss"]] if event["event"] == "step" else [])

    keel.finetune(system, data, dev=None, device=device, out=out, log_every=1, on_event=on_event, **settings)
    assert all(map(math.isfinite, losses))
    assert mean(losses[-5:]) < 0.7 * mean(losses[:5])
    there, here = (Model.load(out, device=place) for place in (device, "cpu"))
    for model in (there, here):
        assert model.task is not None
        model.task.precision = "fp32"
    return there, here


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpt") / "base"
    settings: dict[str, Any] = {"steps": 5, "batch": 4, "vocabulary": 300, "held_out": 0.0, "device": "cpu"}
    keel.pretrain(GPT, keel.Corpus.of(CORPUS), out=out, **settings)
    return out


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("task", [name for name in TASKS if not sample_of(name).generates])
def test_what_a_gpt_learned(task: str, device: str, base: Path, tmp_path: Path) -> None:
    data, settings = sample_of(task).examples[:5], {"steps": 60, **SETTINGS.get(task, {})}
    there, here = finetune_both(base, data * 4, device, tmp_path / "m", task=task, batch=8, lr=3e-3, **settings)
    for model in (there, here):
        scores = keel.evaluate(model, data)
        assert scores.values[scores.main].value > 0.7  # tags of words depend on later words, which GPT does not see
    inputs = TASKS[task].read_examples(data)
    found, wanted = (model.task.predict(inputs).estimates for model in (there, here) if model.task)
    assert found == pytest.approx(wanted, abs=2e-3)


def numbers(count: int) -> list[tuple[str, str]]:
    rng = random.Random(0)
    chosen = [rng.choices([*NUMBERS], k=rng.randint(1, 3)) for _ in range(count)]
    return [(" ".join(words), " ".join(NUMBERS[word] for word in words)) for words in chosen]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("system", WRITERS, ids=["transformer", "seq2seq"])
def test_what_a_seq2seq_model_learned(system: System, device: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 300, "batch": 16, "lr": 5e-3, "schedule": "linear", "vocabulary": 320}
    there, here = finetune_both(system, numbers(200), device, tmp_path / "m", task="seq2seq", **settings)
    texts, right = ["two", "five one", "three four two"], ["Zwei", "Fünf Eins", "Drei Vier Zwei"]
    for model in (there, here):
        assert [found.text for found in keel.translate(texts, model=model, beams=1)] == right
    for found, text in zip(keel.translate(texts, model=there, beams=3, best=3), right, strict=True):
        assert found.text == text
        scores = [each.score or 0.0 for each in (found, *found.alternatives)]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert all(map(math.isfinite, scores))
