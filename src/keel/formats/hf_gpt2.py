"""Hugging Face's GPT-2 folders."""

import re
from collections.abc import Mapping
from typing import Any

from keel.config import from_dict, to_dict
from keel.errors import KeelError
from keel.formats.architecture import (
    ACTIVATIONS,
    BODY,
    CLASSIFIER,
    FOREIGN,
    TAGGING,
    Architecture,
    read_activation,
    read_size,
    refuse_unsupported,
)
from keel.systems.gpt import Gpt

SETTINGS = {
    "layers": "n_layer",
    "width": "n_embd",
    "max_positions": "n_positions",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "norm_epsilon": "layer_norm_epsilon",
}
SUPPORTED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
SIZES = {"vocab_size": 50_257, "n_embd": 768, "n_head": 12, "n_positions": 1024, "n_inner": 0}


def _read(config: Mapping[str, Any], where: str, parts: set[str]) -> tuple[Gpt, int]:
    refuse_unsupported(config, SUPPORTED, where, "GPT")
    base = Gpt()
    vocab_size, width, heads, positions, hidden = (
        read_size(config, name, default, where) for name, default in SIZES.items()
    )
    if width % heads:
        raise KeelError(f"{where}: n_embd {width} is not a multiple of n_head {heads}")
    values = {ours: config.get(theirs, getattr(base, ours)) for ours, theirs in SETTINGS.items()} | {
        "head_dim": width // heads,
        "mlp_ratio": (hidden or 4 * width) / width,
        "activation": read_activation(config, "activation_function", "gelu_new", where),
        "sequence_length": positions,
    }
    return from_dict(Gpt, values | config.get("keel", {}).get("settings", {}), where), vocab_size


def _write(system: Gpt, vocab_size: int) -> dict[str, Any]:
    values = to_dict(system)
    settings = {theirs: values.pop(ours) for ours, theirs in SETTINGS.items()}
    del values["head_dim"]
    return {
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_head": system.heads,
        "n_inner": system.mlp_size,
        "activation_function": ACTIVATIONS[values.pop("activation")][0],
        "embd_pdrop": system.dropout,
        **settings,
        "keel": {"system": system.name, "settings": values},
    }


GPT2 = Architecture(
    system=Gpt,
    modules={
        "encoder.words": "transformer.wte",
        "encoder.positions": "transformer.wpe",
        "encoder.stack.*.attention_norm": "transformer.h.*.ln_1",
        "encoder.stack.*.attention.qkv": "transformer.h.*.attn.c_attn",
        "encoder.stack.*.attention.out": "transformer.h.*.attn.c_proj",
        "encoder.stack.*.output_norm": "transformer.h.*.ln_2",
        "encoder.stack.*.expand": "transformer.h.*.mlp.c_fc",
        "encoder.stack.*.contract": "transformer.h.*.mlp.c_proj",
        "encoder.norm": "transformer.ln_f",
        "classifier": "classifier",
    },
    prefix="transformer.",
    parts={
        "transformer.": BODY,
        "classifier.": CLASSIFIER,
        "score.": FOREIGN,
        "qa_outputs.": FOREIGN,
        "multiple_choice_head.": FOREIGN,
    },
    classes={f"GPT2{TAGGING}": {BODY, CLASSIFIER}, "GPT2LMHeadModel": {BODY}, "GPT2Model": {BODY}},
    bare="GPT2Model",
    whole=(),
    ties={"lm_head.weight": "transformer.wte.weight"},
    old_names={},
    buffers=re.compile(r".*\.attn\.(bias|masked_bias)"),
    read_settings=_read,
    write_settings=_write,
    transposed=frozenset({"qkv", "out", "expand", "contract"}),
    holds=lambda system: system.pre_norm and not system.sink,
)
