"""Where a model comes from, as the README of its folder tells it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from keel.metrics.scores import format_main_score


@dataclass(frozen=True, kw_only=True)
class Card:
    """Where a model comes from: the README of its folder."""

    title: str = ""
    parent: str = ""
    """The model that training started from."""
    text: str = ""
    """What it learned from."""
    steps: int = 0
    seconds: float = 0.0
    hardware: str = ""
    scores: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    """Every setting of the run."""
    command: str = ""

    @classmethod
    def read(cls, config: Mapping[str, Any], folder: Path) -> Self:
        """The card in a folder's configuration; a folder that has none is known by its name."""
        values: dict[str, Any] = {"title": folder.resolve().name, **config.get("keel", {}).get("card", {})}
        return cls(**{item.name: values[item.name] for item in fields(cls) if item.name in values})

    def render(self, *, system: str, purpose: str) -> str:
        """The card in Markdown, headed as the Hugging Face hub wants it."""
        rows = {
            "Learned from": self.text,
            "Parent": self.parent,
            "Steps": f"{self.steps:,}" if self.steps else "",
            "Time": f"{self.seconds / 60:.1f} minutes" if self.seconds else "",
            "Hardware": self.hardware,
            "Command": f"`{self.command}`" if self.command else "",
            **{f"Score: {name}": _figure(value) for name, value in self.scores.items()},
        }
        table = "\n".join(f"| {name} | {value.replace('|', '&#124;')} |" for name, value in rows.items() if value)
        return README.format(title=self.title or "A Keel model", table=table, system=system, purpose=purpose)


README = """\
---
library_name: transformers
pipeline_tag: {purpose}
tags:
- keel
- {system}
---

# {title}

| | |
|---|---|
{table}

Made with Keel. `keel.Model.load` and `transformers.Auto*` read this folder; every setting is in `config.json`.
"""


def _figure(value: Any) -> str:
    """A score as a card shows it: a number, several by name, or of a task's scores the main one."""
    if isinstance(value, Mapping):
        return (
            format_main_score(value)
            if "main" in value
            else ", ".join(f"{name} {_figure(value[name])}" for name in value)
        )
    return f"{value:.4g}" if isinstance(value, float) else str(value)
