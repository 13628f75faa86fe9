"""Layer weights of a scalar mix, learned by a task."""

from dataclasses import dataclass
from typing import Any

from keel.errors import UsageError
from keel.model import Model

BAR = 40
"""Characters of a bar of weight 1."""


@dataclass(frozen=True)
class Layers:
    """Scalar mix: γ Σ_j s_j h_j."""

    weights: list[float]
    """Softmax weights s, from the embeddings upwards; they sum to 1."""
    gamma: float
    numbers: list[int]
    """Layer numbers: 0 for the embeddings, n for the output of block n."""

    def lines(self) -> list[str]:
        bars = [f"{name:>10}  {s:.3f}  {'#' * round(BAR * s)}" for name, s in self.weights_by_name()]
        lines = [*bars, f"{'gamma':>10}  {self.gamma:.3f}"]
        return [*lines, self.left_out] if self.left_out else lines

    def brief(self) -> str:
        """One-line summary."""
        more = f" ({self.left_out})" if self.left_out else ""
        return f"{', '.join(f'{name} {s:.3f}' for name, s in self.weights_by_name())}; gamma {self.gamma:.3f}{more}"

    @property
    def left_out(self) -> str:
        """Note on layers that are not in the mix; empty if all are."""
        names = [_name(number) for number in range(self.numbers[-1]) if number not in self.numbers]
        return f"of another width, so not in the mix: {', '.join(names)}" if names else ""

    def weights_by_name(self) -> list[tuple[str, float]]:
        """The weight of each layer by its name."""
        return [*zip(map(_name, self.numbers), self.weights, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "gamma": self.gamma, "layers": self.numbers}


def _name(number: int) -> str:
    return f"layer {number}" if number else "embeddings"


def layer_weights(model: Model) -> Layers:
    """Layer weights of a fine-tuned model."""
    if model.task is None or model.task.mix is None:
        title = model.card.title or "the model"
        raise UsageError(f"{title} has no scalar mix of layers: fine-tune with --mix")
    mix = model.task.mix
    return Layers(mix.weights.tolist(), mix.gamma.item(), model.encoder.layer_numbers)
