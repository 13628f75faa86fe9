"""The model card: provenance of a model, rendered as the README of its folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from keel.data.examples import Examples
from keel.formats.stored_model import StoredModel
from keel.formats.transformers_classes import auto_classes, describe_readers, pipeline_tag
from keel.metrics.scores import format_main_score
from keel.training.loss_names import PART, format_loss, name_loss


@dataclass(frozen=True, kw_only=True)
class Card:
    """Provenance of a model."""

    title: str = ""
    parent: str = ""
    """The model that training started from; empty for a new one."""
    text: str = ""
    """The training data."""
    steps: int = 0
    seconds: float = 0.0
    hardware: str = ""
    scores: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    """All settings of the run."""
    command: str = ""
    data_fingerprint: str = ""
    """Hash of the labelled examples that the model was fine-tuned on, validation examples included."""

    @classmethod
    def read(cls, config: Mapping[str, Any], folder: Path) -> Self:
        """The card in a folder's config.json; the title defaults to the folder's name."""
        values: dict[str, Any] = {"title": folder.resolve().name, **config.get("keel", {}).get("card", {})}
        return cls(**{item.name: values[item.name] for item in fields(cls) if item.name in values})

    def was_trained_on(self, examples: Examples) -> bool:
        """Whether the model was fine-tuned on exactly these examples, or on those of a file with the same name."""
        same_file = self.text.endswith(f" examples of {Path(examples.source).name}") and Path(examples.source).is_file()
        return same_file or (bool(self.data_fingerprint) and self.data_fingerprint == examples.fingerprint())

    def score_texts(self) -> dict[str, str]:
        """Each score in words; the validation loss of pre-training with its parts in one."""
        losses = {name: value for name, value in self.scores.items() if isinstance(value, float)}
        parts = {name.removeprefix(PART): losses.pop(name) for name in [*losses] if name.startswith(PART)}
        texts = {"validation loss by part": format_figure(parts)} if parts else {}
        texts |= {name.replace("_", " "): format_figure(self.scores[name]) for name in self.scores
                  if not isinstance(self.scores[name], float)}  # fmt: skip
        if "loss" not in losses:
            return {**{name: format_figure(value) for name, value in losses.items()}, **texts}
        total = losses.pop("loss")
        return {f"validation {name_loss(losses)}": format_loss(total, losses), **texts}

    def render(self, stored: StoredModel) -> str:
        """The card in Markdown, with the Hugging Face hub's metadata."""
        rows = {
            "Training data": self.text,
            "Parent": self.parent,
            "Steps": f"{self.steps:,}" if self.steps else "",
            "Time": f"{self.seconds / 60:.1f} minutes" if self.seconds else "",
            "Hardware": self.hardware,
            "Command": f"`{self.command}`" if self.command else "",
            **{f"Score: {name}": text for name, text in self.score_texts().items()},
        }
        table = "\n".join(f"| {name} | {value.replace('|', '&#124;')} |" for name, value in rows.items() if value)
        return README.format(
            title=self.title or "A Keel model",
            table=table,
            system=stored.system.name,
            tag=pipeline_tag(stored),
            library="transformers" if auto_classes(stored) else "keel",
            readers=describe_readers(stored),
        )


README = """\
---
library_name: {library}
pipeline_tag: {tag}
tags:
- keel
- {system}
---

# {title}

| | |
|---|---|
{table}

Trained with Keel. {readers} All settings are in `config.json`.
"""


def format_figure(value: Any) -> str:
    """A score as text: a number, several by name, or the main score of a task."""
    if isinstance(value, Mapping):
        return (
            format_main_score(value)
            if "main" in value
            else ", ".join(f"{name} {format_figure(value[name])}" for name in value)
        )
    return f"{value:.4g}" if isinstance(value, float) else str(value)
