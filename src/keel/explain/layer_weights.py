"""Which layers of its encoder a model's task likes."""

from dataclasses import dataclass
from typing import Any

from keel.errors import UsageError
from keel.model import Model

BAR = 40
"""Marks of a bar that stands for all of the weight."""


@dataclass(frozen=True)
class Layers:
    """The learned mix: γ Σ_j s_j h_j."""

    weights: list[float]
    """s, from the embedded input upwards; they sum to 1."""
    gamma: float
    numbers: list[int]
    """Of these layers: 0 for the embedded input, and n for what the nth block gives."""

    def lines(self) -> list[str]:
        bars = [f"{name:>10}  {s:.3f}  {'#' * round(BAR * s)}" for name, s in self._named()]
        lines = [*bars, f"{'gamma':>10}  {self.gamma:.3f}"]
        return [*lines, self.left_out] if self.left_out else lines

    def brief(self) -> str:
        """On one line."""
        more = f" ({self.left_out})" if self.left_out else ""
        return f"{', '.join(f'{name} {s:.3f}' for name, s in self._named())}; gamma {self.gamma:.3f}{more}"

    @property
    def left_out(self) -> str:
        """Which layers below the top are not in the mix, and why; of a whole mix nothing."""
        names = [_name(number) for number in range(self.numbers[-1]) if number not in self.numbers]
        return f"of another width, so not in the mix: {', '.join(names)}" if names else ""

    def _named(self) -> list[tuple[str, float]]:
        return [*zip(map(_name, self.numbers), self.weights, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "gamma": self.gamma, "layers": self.numbers}


def _name(number: int) -> str:
    return f"layer {number}" if number else "embeddings"


def layer_weights(model: Model) -> Layers:
    """The weights that a fine-tuned model's mix has learned."""
    if model.task is None or model.task.mix is None:
        title = model.card.title or "the model"
        raise UsageError(f"{title} has learned no mix of layers: fine-tune one with --mix")
    mix = model.task.mix
    return Layers(mix.weights.tolist(), mix.gamma.item(), model.encoder.layer_numbers)
