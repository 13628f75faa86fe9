"""The smallest settings that still exercise a system: golden runs and contract tests use them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from keel.systems import LINEAGE, SYSTEMS

ADAMW: dict[str, Any] = {"lr": 1e-2, "epsilon": 1e-4}
"""Epsilon is large, since AdamW otherwise takes steps by gradients that are zero but for rounding, such as that of the
keys' bias, and machines differ in rounding."""
RUN: dict[str, Any] = {"steps": 15, "batch": 4}
BLOCKS: dict[str, Any] = {"layers": 2, "width": 16, "head_dim": 8, "dropout": 0.05}
LSTM: dict[str, Any] = {"bptt": 8, **RUN}

TINY: dict[str, dict[str, Any]] = {
    "onehot": {"batch": 20},
    "wordclass": {"classes": 6, "batch": 10},
    "ngram": {"order": 3},
    "nnlm": {"width": 8, "hidden": 8, "order": 3, "chunk_length": 8, **RUN, **ADAMW},
    "word2vec": {"width": 8, "chunk_length": 40, **RUN},
    "glove": {"width": 8, **RUN},
    "fasttext": {"width": 8, "chunk_length": 40, "buckets": 200, **RUN},
    "cnn": {"width": 8, "filters": 4},
    "rnn": {"width": 12, **LSTM, **ADAMW},
    "ulmfit": {"width": 12, "hidden_size": 16, "layers": 2, **LSTM, "epsilon": 1e-4},
    "elmo": {"width": 8, "cell_size": 12, "character_filters": (4, 4), "highway_layers": 1, "softmax_samples": 40}
    | {**LSTM, **ADAMW, "warmup": 2},
    "transformer": {**BLOCKS, "layers": 1, "decoder_layers": 1, "max_positions": 32},
    "seq2seq": {"width": 12, "attention_dim": 12},
    "gpt": {**BLOCKS, "sequence_length": 16, "max_positions": 32, **RUN, **ADAMW, "vocabulary": 360},
    "bert": {**BLOCKS, "sequence_length": 24, "max_positions": 32, **RUN, **ADAMW},
}
"""By system: settings of pre-training, or of a new model where a system is trained on labels only."""

LONGER: dict[str, Any] = {"steps": 60, "batch": 8}
NO_DROPOUT: dict[str, Any] = dict.fromkeys(("dropout", "attention_dropout"), 0.0)
ONE_BLOCK: dict[str, Any] = {"layers": 1, "width": 32, "head_dim": 16, "max_positions": 64, "sequence_length": 24}
LEARNED: dict[str, dict[str, Any]] = {
    "rnn": {"width": 16, "layers": 1, "bptt": 10, "bidirectional": True, **LONGER, "lr": 3e-2},
    "ulmfit": {"width": 16, "hidden_size": 20, "layers": 2, "bptt": 10, **LONGER, "lr": 0.05}
    | dict.fromkeys(("dropout", "input_dropout", "layer_dropout"), 0.0),
    "elmo": {"width": 16, "cell_size": 32, "character_filters": (8, 8), "highway_layers": 1, "softmax_samples": 60}
    | {"bptt": 10, **LONGER, "lr": 1e-2, "warmup": 5},
    "gpt": {**ONE_BLOCK, **NO_DROPOUT, **LONGER, "lr": 1e-2, "vocabulary": 400},
    "bert": {**ONE_BLOCK, **NO_DROPOUT, **LONGER, "lr": 3e-3},
    "electra": {**ONE_BLOCK, **NO_DROPOUT, **LONGER, "lr": 3e-3, "embedding_ratio": 1.0},
}
"""Instead of `TINY`, for systems whose frozen vectors would not tell words apart after so few steps."""


def of_line(table: Mapping[str, Any], name: str, default: Any) -> Any:
    """The entry of a system or, if it has none, that of its nearest ancestor."""
    if name in table:
        return table[name]
    parents = [ancestor for descendant, ancestor in LINEAGE if descendant == name]
    found = (of_line(table, parent, None) for parent in parents)
    return next((entry for entry in found if entry is not None), default)


def tiny_settings(name: str) -> dict[str, Any]:
    """Settings to learn something; those of a system without an entry follow from the names of its fields."""
    if found := LEARNED.get(name) or TINY.get(name):
        return found
    system = SYSTEMS[name]
    small = {"layers": 1, "width": 16, "head_dim": 8, "hidden_size": 16, "max_positions": 32, "sequence_length": 24}
    run = {"batch": 4} if system.pretraining_defaults.optimizer == "own" else {**RUN, **ADAMW}
    return {field.name: small[field.name] for field in fields(system) if field.name in small} | run
