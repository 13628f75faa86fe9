"""The model card: provenance of a model, rendered as the README of its folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from keel.formats.stored_model import StoredModel
from keel.formats.transformers_classes import auto_classes, describe_readers, pipeline_tag
from keel.metrics.scores import format_main_score


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

    @classmethod
    def read(cls, config: Mapping[str, Any], folder: Path) -> Self:
        """The card in a folder's config.json; the title defaults to the folder's name."""
        values: dict[str, Any] = {"title": folder.resolve().name, **config.get("keel", {}).get("card", {})}
        return cls(**{item.name: values[item.name] for item in fields(cls) if item.name in values})

    def render(self, stored: StoredModel) -> str:
        """The card in Markdown, with the Hugging Face hub's metadata."""
        rows = {
            "Training data": self.text,
            "Parent": self.parent,
            "Steps": f"{self.steps:,}" if self.steps else "",
            "Time": f"{self.seconds / 60:.1f} minutes" if self.seconds else "",
            "Hardware": self.hardware,
            "Command": f"`{self.command}`" if self.command else "",
            **{f"Score: {name}": format_figure(value) for name, value in self.scores.items()},
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
