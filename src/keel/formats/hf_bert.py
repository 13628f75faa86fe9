"""Hugging Face's BERT folders."""

import re
from collections.abc import Mapping
from typing import Any

from keel.config import from_dict, to_dict
from keel.errors import KeelError
from keel.formats.architecture import (
    ACTIVATIONS,
    BODY,
    CHOOSING,
    CLASSIFIER,
    FOREIGN,
    NEXT_HEAD,
    POOLER,
    TAGGING,
    WORD_HEAD,
    Architecture,
    read_activation,
    read_size,
    refuse_unsupported,
)
from keel.systems import SYSTEMS
from keel.systems.bert import Bert

SETTINGS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "max_positions": "max_position_embeddings",
    "segment_types": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
}
SUPPORTED = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}


def _read(config: Mapping[str, Any], where: str, parts: set[str]) -> tuple[Bert, int]:
    refuse_unsupported(config, SUPPORTED, where, "BERT")
    if config.get("pruned_heads"):
        raise KeelError(f"{where}: this model has pruned heads, which Keel's BERT does not support")
    base = Bert()
    sizes = {
        "vocab_size": 30_522,
        "hidden_size": base.width,
        "num_attention_heads": base.heads,
        "intermediate_size": base.mlp_size,
        "max_position_embeddings": base.max_positions,
    }
    vocab_size, width, heads, hidden, positions = (
        read_size(config, name, default, where) for name, default in sizes.items()
    )
    if width % heads:
        raise KeelError(f"{where}: hidden_size {width} is not a multiple of num_attention_heads {heads}")
    keel = config.get("keel", {})
    if keel.get("system", "bert") not in SYSTEMS:
        raise KeelError(f"{where}: there is no system {keel['system']!r}; it needs a newer version of Keel")
    values = {ours: config.get(theirs, getattr(base, ours)) for ours, theirs in SETTINGS.items()} | {
        "head_dim": width // heads,
        "mlp_ratio": hidden / width,
        "activation": read_activation(config, "hidden_act", "gelu", where),
        "sequence_length": min(positions, 4096),
        "next_sentence": NEXT_HEAD in parts or WORD_HEAD not in parts,
    }
    system = from_dict(SYSTEMS[keel.get("system", "bert")], values | keel.get("settings", {}), where)
    assert isinstance(system, Bert)
    return system, vocab_size


def _write(system: Bert, vocab_size: int) -> dict[str, Any]:
    values = to_dict(system)
    settings = {theirs: values.pop(ours) for ours, theirs in SETTINGS.items()}
    del values["head_dim"]
    return {
        "model_type": "bert",
        "vocab_size": vocab_size,
        "num_attention_heads": system.heads,
        "intermediate_size": system.mlp_size,
        "hidden_act": ACTIVATIONS[values.pop("activation")][0],
        **settings,
        "keel": {"system": system.name, "settings": values},
    }


BERT = Architecture(
    system=Bert,
    modules={
        "encoder.words": "bert.embeddings.word_embeddings",
        "encoder.positions": "bert.embeddings.position_embeddings",
        "encoder.segments": "bert.embeddings.token_type_embeddings",
        "encoder.norm": "bert.embeddings.LayerNorm",
        "encoder.stack.*.attention.qkv": "bert.encoder.layer.*.attention.self.query|key|value",
        "encoder.stack.*.attention.out": "bert.encoder.layer.*.attention.output.dense",
        "encoder.stack.*.attention_norm": "bert.encoder.layer.*.attention.output.LayerNorm",
        "encoder.stack.*.expand": "bert.encoder.layer.*.intermediate.dense",
        "encoder.stack.*.contract": "bert.encoder.layer.*.output.dense",
        "encoder.stack.*.output_norm": "bert.encoder.layer.*.output.LayerNorm",
        "encoder.pooler": "bert.pooler.dense",
        "transform": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "bias": "cls.predictions.bias",
        "next": "cls.seq_relationship",
        "classifier": "classifier",
    },
    prefix="bert.",
    parts={
        "bert.pooler.": POOLER,
        "bert.": BODY,
        "cls.predictions.": WORD_HEAD,
        "cls.seq_relationship.": NEXT_HEAD,
        "classifier.": CLASSIFIER,
        "qa_outputs.": FOREIGN,
    },
    classes={
        "BertForSequenceClassification": {BODY, POOLER, CLASSIFIER},
        f"Bert{TAGGING}": {BODY, CLASSIFIER},
        f"Bert{CHOOSING}": {BODY, POOLER, CLASSIFIER},
        "BertForPreTraining": {BODY, POOLER, WORD_HEAD, NEXT_HEAD},
        "BertForMaskedLM": {BODY, WORD_HEAD},
        "BertModel": {BODY, POOLER},
    },
    bare="BertModel",
    whole=(POOLER, WORD_HEAD, NEXT_HEAD),
    ties={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    old_names={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    buffers=re.compile(r"(.*\.)?(position_ids|token_type_ids)"),
    read_settings=_read,
    write_settings=_write,
    untrained=lambda system: set() if system.next_sentence else {NEXT_HEAD},
)
