"""Upgrades of old model folders: names that settings, tensors, tasks and label kinds had in earlier versions.

One table serves model folders, which are upgraded when they are loaded, and messages: a flag, a keyword or a recipe
with an old name gets an error that says the new one.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from keel.systems import SYSTEMS

TRANSFORMER = {"head_width": "head_dim", "expansion": "mlp_ratio"}
SEQ2SEQ = {"smoothing": "label_smoothing", "agreement": "r_drop", "tied": "tie_embeddings"}
WORD2VEC = {"length": "chunk_length", "power": "sampling_power"}
RENAMED_SETTINGS: dict[str, dict[str, str]] = {
    "onehot": {"weights": "weighting"},
    "cnn": {"pieces": "units", "windows": "kernel_sizes"},
    "word2vec": WORD2VEC,
    "fasttext": WORD2VEC | {"kept": "kept_buckets"},
    "nnlm": WORD2VEC | {"direct": "direct_connections"},
    "rnn": {"length": "bptt", "both": "bidirectional", "tied": "tie_embeddings"},
    "ulmfit": {"length": "bptt", "hidden": "hidden_size", "activation": "ar", "slowness": "tar"},
    "elmo": {
        "length": "bptt",
        "cells": "cell_size",
        "letters": "max_characters",
        "letter_width": "character_dim",
        "filters": "character_filters",
        "highways": "highway_layers",
        "negatives": "softmax_samples",
        "opening": "bos_token",
    },
    "transformer": TRANSFORMER | SEQ2SEQ | {"length": "max_positions", "positions": "position_encoding"},
    "seq2seq": SEQ2SEQ | {"hidden": "attention_dim"},
    "gpt": TRANSFORMER | {"positions": "max_positions", "length": "sequence_length"},
    "bert": TRANSFORMER
    | {
        "positions": "max_positions",
        "segments": "segment_types",
        "mask": "mask_rate",
        "whole_words": "whole_word_masking",
        "length": "sequence_length",
        "final_length": "final_sequence_length",
        "next_sentence": "pair_objective",
    },
    "head": {"longer": "extra_length"},
    "columns": {"form": "format"},
}
"""By system, or by section of settings (train, text, columns, head): old names and new ones."""
DROPPED_SETTINGS = {
    "transformer": ("shared", "shared_vocabulary"),
    "seq2seq": ("shared", "shared_vocabulary"),
    "fasttext": ("label_counts",),
}
"""By system or section: names that are no settings any more."""
RENAMED_TASKS: dict[str | bool, str] = {"rewrite": "seq2seq"}
RENAMED_VALUES: dict[str, dict[str, dict[str | bool, str]]] = {
    "bert": {"pair_objective": {True: "nsp", False: "none"}},
    "onehot": {"weighting": {"one": "binary"}},
    "transformer": {"position_encoding": {"sincos": "sinusoidal"}},
    "head": {
        "pool": {"own": "default"},
        "orders": {"own": "default", "one": "given"},
        **dict.fromkeys(("name", "task"), RENAMED_TASKS),
        "kind": {"one": "single", "several": "multi", "number": "regression"},
    },
}
"""By system or section and the setting's new name: old values and new ones."""

RENAMED_TENSORS = {
    "network.letters.letters.": "network.characters.embedding.",
    "network.letters.": "network.characters.",
    "transformer.places.": "transformer.positions.",
    "decoder.places.": "decoder.positions.",
    "ngram.chances": "ngram.log_probs",
}
"""Beginnings of the names of stored tensors: old and new, the longest first."""


def upgrade_tensor_name(name: str) -> str:
    """Today's name of a stored tensor."""
    old = next(filter(name.startswith, RENAMED_TENSORS), "")
    return RENAMED_TENSORS.get(old, "") + name.removeprefix(old)


def upgrade_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a model folder with today's names."""
    if "keel" not in config:
        return dict(config)
    keel = dict(config["keel"])
    system = str(keel.get("system", ""))
    if counts := keel.get("settings", {}).get("label_counts"):  # once a setting of fastText
        keel["task"] = {**keel.get("task", {}), "label_counts": counts}
    if "settings" in keel:
        keel["settings"] = upgrade_settings(system, keel["settings"])
    if "task" in keel:
        keel["task"] = upgrade_settings("head", keel["task"])
    card = keel.get("card", {})
    if isinstance(recipe := card.get("recipe"), dict):
        keel["card"] = card | {"recipe": _upgrade_recipe(system, recipe)}
    return {**config, "keel": keel}


def _upgrade_recipe(system: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: upgrade_settings(system if name == "system" else name, value) if isinstance(value, dict) else value
        for name, value in upgrade_settings("head", recipe).items()
    }


def upgrade_settings(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a system or section with today's names and values; a name that exists today is left alone."""
    today = {field.name for field in fields(SYSTEMS[section])} if section in SYSTEMS else set()
    names, values = RENAMED_SETTINGS.get(section, {}), RENAMED_VALUES.get(section, {})
    upgraded: dict[str, Any] = {}
    for name, value in settings.items():
        if name in DROPPED_SETTINGS.get(section, ()) and name not in today:
            continue
        new = name if name in today else names.get(name, name)
        upgraded[new] = values.get(new, {}).get(value, value) if isinstance(value, str | bool) else value
    return upgraded


def new_names(name: str) -> list[str]:
    """Today's names of settings that had this name."""
    return sorted({names[name] for names in RENAMED_SETTINGS.values() if name in names})
