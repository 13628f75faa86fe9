"""Hugging Face's names for our tensors and settings, both ways: one record per architecture."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from keel.config import from_dict, to_dict
from keel.errors import KeelError
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.gpt import Gpt
from keel.systems.system import System

BODY, POOLER, CLASSIFIER, FOREIGN = "body", "pooler", "classifier", "head of another task"
OF_TASKS = "what a task has beside its classifier"
TAGGING = "ForTokenClassification"
CHOOSING = "ForMultipleChoice"
"""How their names for classes end that say something of each word."""
WORD_HEAD, NEXT_HEAD, LEARNING_HEAD = "masked word head", "next sentence head", "what only pre-training needs"
PRETRAINING_HEADS = {WORD_HEAD, NEXT_HEAD, LEARNING_HEAD}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How Hugging Face writes one kind of network."""

    system: type[System]
    modules: dict[str, str]
    """Our modules and theirs; `a|b|c` are parts that we keep stacked in one matrix, `*` is a number."""
    prefix: str
    """Before the names of the body, except in files of the body alone."""
    parts: dict[str, str]
    """Which part of a model their tensors belong to, by how their names begin."""
    classes: dict[str, set[str]]
    """The parts that each class has; a folder is written as the first class that it has everything for."""
    bare: str
    """The class of the body alone."""
    whole: tuple[str, ...]
    """Parts, beside the body, of a model as pre-training leaves it."""
    ties: dict[str, str]
    """Their tensors that must be copies of others, and of which."""
    old_names: dict[str, str]
    """How names have changed over the years."""
    buffers: re.Pattern[str]
    """Names of what is stored but not learned."""
    read_settings: Callable[[Mapping[str, Any], str, set[str]], tuple[System, int]]
    """The system that a configuration describes, given its place and the parts there are; the vocabulary's size."""
    write_settings: Callable[[Any, int], dict[str, Any]]
    """A system and the size of its vocabulary as their config.json has them."""
    untrained: Callable[[Any], set[str]] = lambda system: set()
    """Parts that a system makes but never trains."""
    transposed: frozenset[str] = frozenset()
    """Our modules, by the ends of their names, whose matrices they keep the other way round."""
    holds: Callable[[Any], bool] = lambda system: True
    """Whether it has all that such a system needs."""

    def theirs(self, ours: str) -> tuple[str, ...]:
        """Their names for the parts of one of our tensors; none if they have nothing like it."""
        if ours in self.modules:
            return (self.modules[ours],)
        module, _, parameter = ours.rpartition(".")
        number = re.search(r"(?<=\.)\d+(?=\.)", module)
        path = self.modules.get(module if number is None else f"{module[: number.start()]}*{module[number.end() :]}")
        if path is None:
            return ()
        if number is not None:
            path = path.replace("*", number[0])
        stem = path[: path.rfind(".") + 1]
        return tuple(f"{stem}{last}.{parameter}" for last in path.removeprefix(stem).split("|"))

    def turned(self, ours: str, tensor: Tensor) -> Tensor:
        """One of our tensors as they keep it, and the other way round."""
        module, _, parameter = ours.rpartition(".")
        turns = parameter == "weight" and module.rpartition(".")[2] in self.transposed
        return tensor.T.contiguous() if turns else tensor

    def part(self, theirs: str) -> str:
        """The part of a model that one of their tensors belongs to."""
        return next((part for start, part in self.parts.items() if theirs.startswith(start)), "unknown")

    def parts_of(self, ours: Iterable[str]) -> set[str]:
        """The parts of a model that these tensors of ours belong to."""
        return {self.part(theirs) for name in ours for theirs in self.theirs(name)}

    def todays_name(self, theirs: str) -> str:
        """One of their names as they write it now, with the prefix."""
        for old, new in self.old_names.items():
            theirs = theirs.replace(old, new)
        return f"{self.prefix}{theirs}" if theirs.startswith(self._bare_starts) else theirs

    @cached_property
    def _bare_starts(self) -> tuple[str, ...]:
        bodies = [path.removeprefix(self.prefix) for path in self.modules.values() if path.startswith(self.prefix)]
        return tuple({path.partition(".")[0] + "." for path in bodies})


BERT_SETTINGS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "max_positions": "max_position_embeddings",
    "segment_types": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
}
BERT_ONLY = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
# The name that we write comes first.
ACTIVATIONS = {
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "relu": ("relu",),
    "silu": ("silu", "swish"),
}


def _activation(config: Mapping[str, Any], name: str, usual: str, where: str) -> str:
    """Our name for theirs."""
    activation = config.get(name, usual)
    known = {theirs: ours for ours, names in ACTIVATIONS.items() for theirs in names}
    if activation not in known:
        raise KeelError(f"{where}: {name} is {activation!r}; Keel knows {', '.join(known)}")
    return known[activation]


def _whole_number(config: Mapping[str, Any], name: str, usual: int, where: str) -> int:
    """A size; where the usual one is 0 it may be left open."""
    value = config.get(name, usual) if usual else config.get(name) or usual
    if type(value) is not int or value < min(1, usual):
        raise KeelError(f"{where}: {name} must be a whole number above 0, not {value!r}")
    return value


def _read_bert(config: Mapping[str, Any], where: str, parts: set[str]) -> tuple[Bert, int]:
    for name, only in BERT_ONLY.items():
        if config.get(name) not in (None, only):
            raise KeelError(f"{where}: {name} is {config[name]!r}; Keel's BERT has only {only!r}")
    if config.get("pruned_heads"):
        raise KeelError(f"{where}: this model has pruned heads, which Keel's BERT cannot hold")
    base = Bert()
    sizes = {
        "vocab_size": 30_522,
        "hidden_size": base.width,
        "num_attention_heads": base.heads,
        "intermediate_size": base.mlp_size,
        "max_position_embeddings": base.max_positions,
    }
    vocabulary, width, heads, hidden, positions = (
        _whole_number(config, name, usual, where) for name, usual in sizes.items()
    )
    if width % heads:
        raise KeelError(f"{where}: hidden_size {width} is no multiple of num_attention_heads {heads}")
    keel = config.get("keel", {})
    if keel.get("system", "bert") not in SYSTEMS:
        raise KeelError(f"{where}: there is no system {keel['system']!r}; it needs a newer Keel")
    values = {ours: config.get(theirs, getattr(base, ours)) for ours, theirs in BERT_SETTINGS.items()} | {
        "head_dim": width // heads,
        "mlp_ratio": hidden / width,
        "activation": _activation(config, "hidden_act", "gelu", where),
        "sequence_length": min(positions, 4096),  # the longest row there can be
        "next_sentence": NEXT_HEAD in parts or WORD_HEAD not in parts,
    }
    system = from_dict(SYSTEMS[keel.get("system", "bert")], values | keel.get("settings", {}), where)
    assert isinstance(system, Bert)
    return system, vocabulary


def _write_bert(system: Bert, vocabulary: int) -> dict[str, Any]:
    values = to_dict(system)
    settings = {theirs: values.pop(ours) for ours, theirs in BERT_SETTINGS.items()}
    del values["head_dim"]
    return {
        "model_type": "bert",
        "vocab_size": vocabulary,
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
    read_settings=_read_bert,
    write_settings=_write_bert,
    untrained=lambda system: set() if system.next_sentence else {NEXT_HEAD},
)


GPT2_SETTINGS = {
    "layers": "n_layer",
    "width": "n_embd",
    "max_positions": "n_positions",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "norm_epsilon": "layer_norm_epsilon",
}
GPT2_ONLY = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def _read_gpt2(config: Mapping[str, Any], where: str, parts: set[str]) -> tuple[Gpt, int]:
    for name, only in GPT2_ONLY.items():
        if config.get(name) not in (None, only):
            raise KeelError(f"{where}: {name} is {config[name]!r}; Keel's GPT has only {only!r}")
    base = Gpt()
    vocabulary, width, heads, positions, hidden = (
        _whole_number(config, name, usual, where)
        for name, usual in (
            ("vocab_size", 50_257),
            ("n_embd", 768),
            ("n_head", 12),
            ("n_positions", 1024),
            ("n_inner", 0),
        )
    )
    if width % heads:
        raise KeelError(f"{where}: n_embd {width} is no multiple of n_head {heads}")
    values = {ours: config.get(theirs, getattr(base, ours)) for ours, theirs in GPT2_SETTINGS.items()} | {
        "head_dim": width // heads,
        "mlp_ratio": (hidden or 4 * width) / width,
        "activation": _activation(config, "activation_function", "gelu_new", where),
        "sequence_length": positions,
    }
    return from_dict(Gpt, values | config.get("keel", {}).get("settings", {}), where), vocabulary


def _write_gpt2(system: Gpt, vocabulary: int) -> dict[str, Any]:
    values = to_dict(system)
    settings = {theirs: values.pop(ours) for ours, theirs in GPT2_SETTINGS.items()}
    del values["head_dim"]
    return {
        "model_type": "gpt2",
        "vocab_size": vocabulary,
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
    read_settings=_read_gpt2,
    write_settings=_write_gpt2,
    transposed=frozenset({"qkv", "out", "expand", "contract"}),
    holds=lambda system: system.pre_norm and not system.sink,
)


@dataclass(frozen=True, kw_only=True)
class KeelOnly(Architecture):
    """How a system is written that nobody else has: by our names, with its own for the encoder."""

    def theirs(self, ours: str) -> tuple[str, ...]:
        return (f"{self.system.name}.{ours.removeprefix('encoder.')}" if ours.startswith("encoder.") else ours,)

    def part(self, theirs: str) -> str:
        if theirs.startswith(f"{self.system.name}."):
            return BODY
        if theirs.startswith(("crf.", "mix.", "network.", "decoder.")):
            return OF_TASKS
        return CLASSIFIER if theirs.startswith("classifier.") else LEARNING_HEAD

    def todays_name(self, theirs: str) -> str:
        return theirs


def _own(system: type[System]) -> KeelOnly:
    def read(config: Mapping[str, Any], where: str, parts: set[str]) -> tuple[System, int]:
        vocabulary = config.get("vocab_size")
        if type(vocabulary) is not int or vocabulary < 1:
            raise KeelError(f"{where}: vocab_size must be a whole number above 0, not {vocabulary!r}")
        return from_dict(system, config.get("keel", {}).get("settings", {}), where), vocabulary

    def write(system: System, vocabulary: int) -> dict[str, Any]:
        keel = {"system": system.name, "settings": to_dict(system)}
        return {"model_type": system.name, "vocab_size": vocabulary, "keel": keel}

    name = system.__name__
    return KeelOnly(
        system=system,
        modules={},
        prefix="",
        parts={},
        classes={
            f"{name}ForSequenceClassification": {BODY, CLASSIFIER},
            f"{name}{TAGGING}": {BODY, CLASSIFIER},
            f"{name}{CHOOSING}": {BODY, CLASSIFIER},
            f"{name}ForPreTraining": {BODY, LEARNING_HEAD},
            f"{name}Model": {BODY},
        },
        bare=f"{name}Model",
        whole=(LEARNING_HEAD,),
        ties={},
        old_names={},
        buffers=re.compile(r"(?!)"),
        read_settings=read,
        write_settings=write,
    )


ARCHITECTURES: dict[str, Architecture] = {
    "bert": BERT,
    "gpt2": GPT2,
    **{name: _own(system) for name, system in SYSTEMS.items() if not issubclass(system, Bert | Gpt)},
    "gpt": replace(_own(Gpt), whole=()),  # words are foretold by their own vectors
}
"""By the `model_type` of their config.json."""


def architecture_of(system: System) -> Architecture:
    """The one that a system is written as."""
    able = [one for one in ARCHITECTURES.values() if isinstance(system, one.system) and one.holds(system)]
    # A descendant may be written otherwise than its ancestor.
    return next((one for one in able if one.system is type(system)), able[0])
