"""Upgrades of old model folders: names that settings, tasks and label kinds had in earlier versions.

One table serves model folders, which are upgraded when they are loaded, and messages: a flag, a keyword or a recipe
with an old name gets an error that says the new one.
"""

from collections.abc import Mapping
from typing import Any

TRANSFORMER = {"head_width": "head_dim", "expansion": "mlp_ratio"}
SEQ2SEQ = {
    "smoothing": "label_smoothing",
    "agreement": "r_drop",
    "tied": "tie_embeddings",
    "shared": "shared_vocabulary",
}
RENAMED_SETTINGS: dict[str, dict[str, str]] = {
    "bert": TRANSFORMER
    | {
        "positions": "max_positions",
        "segments": "segment_types",
        "mask": "mask_rate",
        "whole_words": "whole_word_masking",
    },
    "gpt": TRANSFORMER | {"positions": "max_positions"},
    "transformer": TRANSFORMER | SEQ2SEQ,
    "seq2seq": SEQ2SEQ,
    "rnn": {"length": "bptt", "both": "bidirectional", "tied": "tie_embeddings"},
    "ulmfit": {"length": "bptt", "activation": "ar", "slowness": "tar"},
    "elmo": {"length": "bptt"},
}
"""By system, or by section of settings (train, text, columns, head): old names and new ones."""
RENAMED_VALUES: dict[str, dict[str, dict[Any, Any]]] = {}
"""By system or section and the setting's new name: old values and new ones."""
RENAMED_TASKS = {"rewrite": "seq2seq"}
RENAMED_KINDS: dict[str, str] = {}
"""Kinds of labels."""


def upgrade_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a model folder with today's names."""
    if "keel" not in config:
        return dict(config)
    keel = dict(config["keel"])
    system = str(keel.get("system", ""))
    if "settings" in keel:
        keel["settings"] = upgrade_settings(system, keel["settings"])
    if "task" in keel:
        task = upgrade_settings("head", keel["task"])
        if (name := task.get("name")) in RENAMED_TASKS:
            task["name"] = RENAMED_TASKS[name]
        if "kind" in task:
            task["kind"] = RENAMED_KINDS.get(task["kind"], task["kind"])
        keel["task"] = task
    card = keel.get("card", {})
    if isinstance(recipe := card.get("recipe"), dict):
        keel["card"] = card | {"recipe": _upgrade_recipe(system, recipe)}
    return {**config, "keel": keel}


def _upgrade_recipe(system: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
    upgraded = {
        name: upgrade_settings(system if name == "system" else name, value) if isinstance(value, dict) else value
        for name, value in upgrade_settings("head", recipe).items()
    }
    if (task := str(upgraded.get("task", ""))) in RENAMED_TASKS:
        upgraded["task"] = RENAMED_TASKS[task]
    return upgraded


def upgrade_settings(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a system or section with today's names and values; a new name that is there already wins."""
    names, values = RENAMED_SETTINGS.get(section, {}), RENAMED_VALUES.get(section, {})
    upgraded = {names.get(name, name): value for name, value in settings.items() if names.get(name) not in settings}
    return {
        name: values[name].get(value, value) if name in values and isinstance(value, str | int) else value
        for name, value in upgraded.items()
    }


def new_names(name: str, system: str = "") -> list[str]:
    """Today's names of a setting with this old name: of one system, or of any."""
    sections = [section for section in RENAMED_SETTINGS if not system or section == system]
    return sorted({new for section in sections for old, new in RENAMED_SETTINGS[section].items() if old == name})
