"""The golden runs, and every call of Keel that they make: a renamed function or field changes here only.

Each run is made twice, once uninterrupted and once interrupted and resumed; weights and losses of both must be equal
bit for bit. What is recorded comes from the model that was loaded from its folder.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import keel
from keel.errors import Interrupted
from tests.golden.cases import COMMON, HELD_OUT, OTHER_TEXT, VOCABULARY, Case, Labelled

TEXTS = ["a contract", "soup before winter", "法律"]
OTHER_TEXTS = ["the clerk reads a heavy letter . the judge signs it .", "every monday the cook warms the bread ."]

Train = Callable[..., Any]


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    """A system's whole path, as plain data."""
    found: dict[str, Any] = {}
    base: Any = case.system
    if case.pretrain is not None:
        settings = COMMON | VOCABULARY | HELD_OUT | case.pretrain

        def pretrain(**more: Any) -> Any:
            return keel.pretrain(case.system, case.corpus, **settings, **more)

        base, found["pretrained"] = _train(pretrain, folder / "pretrained", case.stop)
        found["pretrained"] |= {name: QUERIES[name](base, case) for name in case.queries}
    if case.more is not None:
        parent, more_settings = base, COMMON | HELD_OUT | case.more

        def continue_pretraining(**more: Any) -> Any:
            return keel.pretrain(parent, OTHER_TEXT, **more_settings, **more)

        base, found["continued"] = _train(continue_pretraining, folder / "continued", case.stop)
    if case.finetune is not None:
        found["finetuned"] = _finetune(base, case.finetune, case.new, folder / "finetuned")
    return found


def _finetune(base: Any, labelled: Labelled, new: dict[str, Any], folder: Path) -> dict[str, Any]:
    settings = COMMON | new | labelled.settings | labelled.columns

    def finetune(**more: Any) -> Any:
        return keel.finetune(base, labelled.examples, task=labelled.task, **settings, **more)

    model, found = _train(finetune, folder, labelled.stop)
    found["predictions"] = [_answer(each) for each in model.predict(labelled.inputs)]
    found["score"] = keel.evaluate(model, labelled.examples, **labelled.columns).main_value
    return found


def _train(train: Train, folder: Path, stop: int) -> tuple[Any, dict[str, Any]]:
    """The model, read from its folder, and its losses and weights; the same run interrupted must end the same."""
    straight, interrupted = Losses(), Losses()
    model = train(out=folder / "straight", on_event=straight.on_event)
    interrupted.stop = stop
    with suppress(Interrupted):
        train(out=folder / "resumed", on_event=interrupted.on_event)
    assert not stop or len(interrupted.steps) == stop < len(straight.steps), "it was not interrupted"
    interrupted.stop = 0
    resumed = train(out=folder / "resumed", on_event=interrupted.on_event)
    assert interrupted.steps == straight.steps, "the losses of a resumed run differ"
    assert interrupted.held_out == straight.held_out, "the held-out losses of a resumed run differ"
    loaded = keel.Model.load(folder / "resumed")
    for other, what in ((resumed, "a resumed run differs"), (loaded, "a model read from its folder differs")):
        one, two = model.tensors(), other.tensors()
        assert one.keys() == two.keys(), what
        # A folder stores fp32, also of counts that training keeps in fp64.
        assert all(torch.equal(one[name].to(two[name].dtype), two[name]) for name in one), what
    return loaded, {
        "loss": straight.steps,
        **({"held-out loss": straight.held_out} if straight.held_out else {}),
        "weights": fingerprints(list(loaded.tensors().values())),
    }


class Losses:
    """Collects the losses of a run, and interrupts it after step `stop` (0: never)."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.held_out: list[float] = []
        self.stop = 0

    def on_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "step":
            self.steps.append(event["loss"])
            if event["step"] == self.stop:
                os.kill(os.getpid(), signal.SIGTERM)
        elif event["event"] == "evaluation":
            self.held_out.append(event["loss"])


def fingerprints(tensors: list[torch.Tensor]) -> list[Any]:
    """[shape, mean, mean of absolute values, projection, first values] of each distinct tensor, whatever its name."""
    distinct: list[torch.Tensor] = []
    for tensor in tensors:
        if not any(each.shape == tensor.shape and torch.equal(each, tensor) for each in distinct):
            distinct.append(tensor)
    return sorted(map(_fingerprint, distinct))


def _fingerprint(tensor: torch.Tensor) -> list[Any]:
    values = tensor.detach().double().flatten()
    values = values[values.abs() < 1e30]  # placeholders for "none"
    if not len(values):
        return [list(tensor.shape), 0.0, 0.0, 0.0, []]
    waves = torch.cos(torch.arange(len(values), dtype=torch.float64))  # sensitive to the order of values
    figures = (values.mean(), values.abs().mean(), (values * waves).mean())
    return [list(tensor.shape), *map(float, figures), values[:3].tolist()]


def _answer(found: Any) -> Any:
    """A prediction as plain data, whatever the task."""
    if isinstance(found, float):
        return found
    if isinstance(found, list):
        return [_answer(each) for each in found]
    if hasattr(found, "tags"):
        return [list(found.tags), list(found.probabilities)]
    if hasattr(found, "probabilities"):
        return [found.index, found.text, list(found.probabilities)]
    if hasattr(found, "confidence"):
        return [found.label, found.confidence]
    return [found.text, found.score]


def _vectors(model: Any, case: Case) -> list[Any]:
    texts = [case.masked_text, *TEXTS]
    return [_fingerprint(torch.from_numpy(model.encode(texts))), _fingerprint(torch.from_numpy(model.encode(texts[0])))]


def _perplexity(model: Any, case: Case) -> list[Any]:
    found = keel.perplexity(model, OTHER_TEXTS)
    return [found.tokens, found.unknown, found.words, found.bytes, *(each.value for each in found.values.values())]


def _generate(model: Any, case: Case) -> list[Any]:
    prompt = "the captain"
    return [
        keel.generate(prompt, model=model, tokens=8, temperature=0),
        keel.generate(prompt, model=model, tokens=8, seed=3, top_k=20, top_p=0.9, repetition_penalty=1.2),
        keel.generate(prompt, model=model, tokens=6, beams=3, best=2),
    ]


def _fill(model: Any, case: Case) -> list[Any]:
    return [[[word, chance] for word, chance in words] for words in model.fill(case.masked_text, top=3)]


def _nearest(model: Any, case: Case) -> list[Any]:
    return [[word, score] for word, score in keel.nearest("boat", model=model, top=4)]


QUERIES: dict[str, Callable[[Any, Case], list[Any]]] = {
    "vectors": _vectors,
    "perplexity": _perplexity,
    "generate": _generate,
    "fill": _fill,
    "nearest": _nearest,
}
