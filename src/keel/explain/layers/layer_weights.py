"""Layer weights of a scalar mix, learned by a task; of several models side by side."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keel.errors import UsageError
from keel.explain.layers.layer_table import TableColumn, layer_lines
from keel.localization import translate, translated
from keel.model import Model
from keel.text_table import TextLines, cell_len, pad_left

BAR = 40
"""Characters of a bar of weight 1."""


@dataclass(frozen=True)
class Layers(TextLines):
    """Scalar mix: γ Σ_j s_j h_j."""

    weights: list[float]
    """Softmax weights s, from the embeddings upwards; they sum to 1."""
    gamma: float
    numbers: list[int]
    """Layer numbers: 0 for the embeddings, n for the output of block n."""

    def __repr__(self) -> str:
        return f"Layers({self.brief()})"

    def lines(self) -> list[str]:
        rows = [(name, f"{s:.3f}", "#" * round(BAR * s)) for name, s in self.weights_by_name()]
        rows += [("gamma", f"{self.gamma:.3f}", ""), ("center", f"{self.center_of_gravity:.2f}", "")]
        names = translated(name for name, *_ in rows)
        width = max(10, *map(cell_len, names))
        lines = [
            f"{pad_left(name, width)}  {value}  {bar}".rstrip()
            for name, (_, value, bar) in zip(names, rows, strict=True)
        ]
        return [*lines, translate(self.left_out)] if self.left_out else lines

    def brief(self) -> str:
        """One-line summary."""
        more = f" ({self.left_out})" if self.left_out else ""
        return f"{', '.join(f'{name} {s:.3f}' for name, s in self.weights_by_name())}; gamma {self.gamma:.3f}{more}"

    @property
    def center_of_gravity(self) -> float:
        """Σ_j j s_j, the mean layer under the weights (Tenney et al. 2019)."""
        return sum(number * weight for number, weight in zip(self.numbers, self.weights, strict=True))

    @property
    def left_out(self) -> str:
        """Note on layers that are not in the mix; empty if all are."""
        names = [_name(number) for number in range(self.numbers[-1]) if number not in self.numbers]
        return f"of another width, so not in the mix: {', '.join(names)}" if names else ""

    def weights_by_name(self) -> list[tuple[str, float]]:
        """The weight of each layer by its name."""
        return [*zip(map(_name, self.numbers), self.weights, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "weights": self.weights,
            "gamma": self.gamma,
            "layers": self.numbers,
            "center_of_gravity": self.center_of_gravity,
        }


@dataclass(frozen=True)
class TaskMix:
    """The scalar mix of one of several models."""

    model: str
    task: str
    layers: Layers

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "task": self.task, **self.layers.to_dict()}


@dataclass(frozen=True)
class LayersByTask(TextLines):
    """The scalar mixes of several models, each fine-tuned on a task of its own."""

    mixes: Sequence[TaskMix]

    def __repr__(self) -> str:
        return f"LayersByTask({', '.join(f'{each.model}: {each.task}' for each in self.mixes)})"

    def lines(self) -> list[str]:
        columns = []
        for each in self.mixes:
            found = each.layers
            cells = {number: f"{s:.3f}" for number, s in zip(found.numbers, found.weights, strict=True)}
            columns.append(TableColumn(each.model, cells, [f"{found.gamma:.3f}", f"{found.center_of_gravity:.2f}"]))
        tasks = [f"{each.model}: {each.task}" for each in self.mixes]
        return [
            *layer_lines(columns, ["gamma", "center"]),
            "",
            *tasks,
            translate("layer 0: embeddings; center: mean layer"),
        ]

    def to_dict(self) -> dict[str, Any]:
        return {"tasks": [each.to_dict() for each in self.mixes]}


def _name(number: int) -> str:
    return f"layer {number}" if number else "embeddings"


def layer_weights(model: Model) -> Layers:
    """Layer weights of a fine-tuned model."""
    if model.task is None or model.task.mix is None:
        title = model.card.title or "the model"
        raise UsageError(f"{title} has no scalar mix of layers: fine-tune with --mix")
    mix = model.task.mix
    return Layers(mix.weights.tolist(), mix.gamma.item(), model.encoder.layer_numbers)


def layers_by_task(models: Iterable[Model]) -> LayersByTask:
    """Layer weights of several fine-tuned models; models of one name are numbered."""
    mixes: list[TaskMix] = []
    for model in models:
        found, name = layer_weights(model), model.title
        same = sum(each.model == name or each.model.startswith(f"{name} #") for each in mixes)
        mixes.append(TaskMix(f"{name} #{same + 1}" if same else name, model.task.name if model.task else "", found))
    if not mixes:
        raise UsageError("the list of models is empty: give one or more")
    return LayersByTask(mixes)
