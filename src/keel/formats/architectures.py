"""Architectures of model folders: settings and tensors in Keel and in Hugging Face's folders, in both directions."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn

from keel.config import from_dict, to_dict
from keel.errors import KeelError
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.electra import Electra
from keel.systems.gpt import Gpt
from keel.systems.system import System

BODY, POOLER, CLASSIFIER = "body", "pooler", "classifier"
FOREIGN = "head of another task"
"""Also what no table knows: only tensors of known parts must all be used."""
TASK_LAYERS = "task layers beside the classifier"
TAGGING, MULTIPLE_CHOICE = "ForTokenClassification", "ForMultipleChoice"
"""Suffixes of class names that tell the kind of labels."""
WORD_HEAD, NEXT_HEAD, OBJECTIVE_HEAD = "masked language model head", "next sentence head", "pre-training parameters"
DETECTION_HEAD = "replaced token detection head"
PRETRAINING_HEADS = {WORD_HEAD, NEXT_HEAD, OBJECTIVE_HEAD, DETECTION_HEAD}
POSITIONS = "encoder.positions.weight"

MAX_SIZE, MAX_SETTING = 1 << 31, 1 << 48
"""Bounds of sizes that a tensor has, and of any setting."""

# The name that we write comes first.
ACTIVATIONS = {
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "relu": ("relu",),
    "silu": ("silu", "swish"),
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How Hugging Face stores one kind of network."""

    system: type[System]
    model_type: str
    """Its name in config.json."""
    classes: dict[str, set[str]]
    """The parts of each class; a folder is written as the first class that it has all parts of, or as the last."""
    whole: tuple[str, ...] = ()
    """Parts, besides the body, of a complete pre-trained model."""
    settings: dict[str, str] = field(default_factory=dict)
    """Fields of their config.json and our settings; settings without a field are stored under "keel"."""
    supported: dict[str, Any] = field(default_factory=dict)
    """Fields of their config.json with the only value that Keel supports."""
    vocab_size: int = 0
    """Their default."""
    mlp_size: int | None = None
    """Their default; None: four times the width."""
    more_settings: Callable[[Mapping[str, Any], set[str]], dict[str, Any]] = lambda values, parts: {}
    """Settings of a folder without our fields, given its other settings and its parts."""
    modules: dict[str, str] = field(default_factory=dict)
    """Our modules and theirs; `a|b|c` are matrices that we keep stacked in one, `*` is a layer number."""
    prefix: str = ""
    """Prefix of the body's tensors, except in files of the body alone."""
    parts: dict[str, str] = field(default_factory=dict)
    """The part of a model that their tensors belong to, by prefix of the name."""
    extra_parts: dict[str, str] = field(default_factory=dict)
    """The part that tensors of ours without a name of theirs belong to, by prefix of our name."""
    class_names: dict[str, dict[str, str]] = field(default_factory=dict)
    """By class: substrings of tensor names, and what they are in files of that class."""
    ties: dict[str, str] = field(default_factory=dict)
    """Tied tensors: each must equal the other."""
    old_names: dict[str, str] = field(default_factory=dict)
    """Substrings of tensor names in older folders, and what they are today."""
    buffers: str = ""
    """Pattern of the names of stored tensors that are not parameters."""
    transposed: frozenset[str] = frozenset()
    """Our modules, by the last part of the name, whose matrices they store transposed."""
    position_offset: int = 0
    """Rows before the first position in their table of position embeddings."""
    untrained: Callable[[Any], set[str]] = lambda system: set()
    """Parts that a system has but never trains."""
    holds: Callable[[Any], bool] = lambda system: True
    """Whether the architecture can represent this system's settings."""

    in_transformers: ClassVar[bool] = True
    """Whether transformers has it too."""

    @property
    def bare(self) -> str:
        """The class of the body alone."""
        return [*self.classes][-1]

    def read_settings(self, config: Mapping[str, Any], where: str, parts: set[str]) -> tuple[System, int]:
        """The system of a config.json, given its path and the parts of the folder; and the vocabulary size."""
        for name, only in self.supported.items():
            if config.get(name) not in (None, only):
                what = f"{name} is {config[name]!r}; Keel's {self.system.__name__} supports only {only!r}"
                raise KeelError(f"{where}: {what}")
        keel = config.get("keel", {})
        if (system := keel.get("system", self.system.name)) not in SYSTEMS:
            raise KeelError(f"{where}: there is no system {system!r}; it needs a newer version of Keel")
        vocab_size = _checked_size(config.get("vocab_size", self.vocab_size), "vocab_size", where)
        values = self._convert_settings(config, where) if self.settings else {}
        values |= self.more_settings(values, parts) | keel.get("settings", {})
        found = from_dict(SYSTEMS[system], values, where)
        for name, value in to_dict(found).items():
            if any(
                isinstance(each, int) and each >= MAX_SETTING
                for each in (value if isinstance(value, list) else [value])
            ):
                raise KeelError(f"{where}: {name} must be below {MAX_SETTING:,}, not {value!r:.60}")
        return found, vocab_size

    def _convert_settings(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
        base: Any = self.system()
        theirs = {ours: name for name, ours in self.settings.items()}
        values = {ours: config.get(name, getattr(base, ours)) for ours, name in theirs.items()}
        values["mlp_size"] = config.get(theirs["mlp_size"], self.mlp_size)
        if values["mlp_size"] is None:
            values["mlp_size"] = 4 * values["width"]
        for ours in ("width", "heads", "mlp_size", "max_positions"):
            _checked_size(values[ours], theirs[ours], where)
        values["max_positions"] = max(1, values["max_positions"] - self.position_offset)
        width, heads = values["width"], values.pop("heads")
        if width % heads:
            raise KeelError(f"{where}: {theirs['width']} {width} is not a multiple of {theirs['heads']} {heads}")
        known = {name: ours for ours, names in ACTIVATIONS.items() for name in names}
        activation = config.get(theirs["activation"], ACTIVATIONS[base.activation][0])
        if not isinstance(activation, str) or activation not in known:
            raise KeelError(f"{where}: {theirs['activation']} is {activation!r}; Keel knows {', '.join(known)}")
        ratio = values.pop("mlp_size") / width
        if "embedding_width" in values:
            values["embedding_ratio"] = (
                _checked_size(values.pop("embedding_width"), theirs["embedding_width"], where) / width
            )
        return values | {"head_dim": width // heads, "mlp_ratio": ratio, "activation": known[activation]}

    def write_settings(self, system: Any, vocab_size: int) -> dict[str, Any]:
        """The config.json of a system and its vocabulary size."""
        theirs = {
            name: ACTIVATIONS[system.activation][0] if ours == "activation" else getattr(system, ours)
            for name, ours in self.settings.items()
        }
        if self.position_offset:
            theirs["max_position_embeddings"] += self.position_offset
        stored = {*self.settings.values(), "head_dim"} if self.settings else set()
        settings = {name: value for name, value in to_dict(system).items() if name not in stored}
        keel = {"system": system.name, "settings": settings}
        return {"model_type": self.model_type, "vocab_size": vocab_size, **theirs, "keel": keel}

    def theirs(self, ours: str) -> tuple[str, ...]:
        """Their names for the parts of one of our tensors; empty if they have no such tensor."""
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

    def name_in_class(self, theirs: str, named: str) -> str:
        """One of their names in files of a class."""
        for general, own in self.class_names.get(named, {}).items():
            theirs = theirs.replace(general, own)
        return theirs

    def to_ours(self, ours: str, tensor: Tensor) -> Tensor:
        """Their tensor in our layout."""
        tensor = self._transpose(ours, tensor)
        return tensor[self.position_offset :] if ours == POSITIONS else tensor

    def to_theirs(self, ours: str, tensor: Tensor) -> Tensor:
        """Our tensor in their layout."""
        if ours == POSITIONS:
            tensor = nn.functional.pad(tensor, (0, 0, self.position_offset, 0))
        return self._transpose(ours, tensor)

    def _transpose(self, ours: str, tensor: Tensor) -> Tensor:
        module, _, parameter = ours.rpartition(".")
        turns = parameter == "weight" and module.rpartition(".")[2] in self.transposed
        return tensor.T.contiguous() if turns else tensor

    def part(self, theirs: str) -> str:
        """The part of a model that one of their tensors belongs to."""
        return next((part for start, part in self.parts.items() if theirs.startswith(start)), FOREIGN)

    def parts_of(self, ours: Iterable[str]) -> set[str]:
        """The parts of a model that these tensors of ours belong to."""
        names = [*ours]
        extra = {part for start, part in self.extra_parts.items() if any(name.startswith(start) for name in names)}
        return extra | {self.part(theirs) for name in names for theirs in self.theirs(name)}

    def current_name(self, theirs: str) -> str:
        """One of their names as they write it today, with the prefix."""
        for old, new in self.old_names.items():
            theirs = theirs.replace(old, new)
        return f"{self.prefix}{theirs}" if theirs.startswith(self._bare_starts) else theirs

    @cached_property
    def _bare_starts(self) -> tuple[str, ...]:
        bodies = [path.removeprefix(self.prefix) for path in self.modules.values() if path.startswith(self.prefix)]
        return tuple({path.partition(".")[0] + "." for path in bodies})


def _checked_size(value: Any, name: str, where: str) -> int:
    if type(value) is not int or not 1 <= value < MAX_SIZE:
        raise KeelError(f"{where}: {name} must be a whole number above 0 and below {MAX_SIZE:,}, not {value!r:.60}")
    return value


BERT = Architecture(
    system=Bert,
    model_type="bert",
    classes={
        "BertForSequenceClassification": {BODY, POOLER, CLASSIFIER},
        f"Bert{TAGGING}": {BODY, CLASSIFIER},
        f"Bert{MULTIPLE_CHOICE}": {BODY, POOLER, CLASSIFIER},
        "BertForPreTraining": {BODY, POOLER, WORD_HEAD, NEXT_HEAD},
        "BertForMaskedLM": {BODY, WORD_HEAD},
        "BertModel": {BODY, POOLER},
    },
    whole=(POOLER, WORD_HEAD, NEXT_HEAD),
    settings={
        "num_attention_heads": "heads",
        "intermediate_size": "mlp_size",
        "hidden_act": "activation",
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "max_position_embeddings": "max_positions",
        "type_vocab_size": "segment_types",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_epsilon",
    },
    supported={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "pruned_heads": {},
    },
    vocab_size=30_522,
    mlp_size=3072,
    more_settings=lambda values, parts: {
        "sequence_length": min(values["max_positions"], 4096),
        "pair_objective": "nsp" if NEXT_HEAD in parts or WORD_HEAD not in parts else "none",
    },
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
    },
    ties={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    old_names={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    buffers=r"(.*\.)?(position_ids|token_type_ids)",
    untrained=lambda system: set() if system.predicts_pairs else {NEXT_HEAD},
    holds=lambda system: system.variant == "bert",
)
ELECTRA = Architecture(
    system=Electra,
    model_type="electra",
    classes={
        "ElectraForSequenceClassification": {BODY, POOLER, CLASSIFIER},
        f"Electra{TAGGING}": {BODY, CLASSIFIER},
        f"Electra{MULTIPLE_CHOICE}": {BODY, POOLER, CLASSIFIER},
        "ElectraForPreTraining": {BODY, DETECTION_HEAD},
        "ElectraModel": {BODY},
    },
    whole=(DETECTION_HEAD, WORD_HEAD),
    settings=BERT.settings | {"embedding_size": "embedding_width"},
    supported={**BERT.supported, "summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
    vocab_size=30_522,
    mlp_size=1024,
    more_settings=lambda values, parts: {"sequence_length": min(values["max_positions"], 4096)},
    modules={
        **{
            ours: theirs.replace("bert.", "electra.", 1)
            for ours, theirs in BERT.modules.items()
            if ours.startswith("encoder.")
        },
        "encoder.project": "electra.embeddings_project",
        "encoder.pooler": "classifier.dense",
        "transform": "discriminator_predictions.dense",
        "detector": "discriminator_predictions.dense_prediction",
        "classifier": "classifier.out_proj",
    },
    prefix="electra.",
    parts={
        "electra.": BODY,
        "discriminator_predictions.": DETECTION_HEAD,
        "classifier.dense.": POOLER,
        "classifier.": CLASSIFIER,
    },
    extra_parts={"generator.": WORD_HEAD},
    old_names={
        "classifier.weight": "classifier.out_proj.weight",
        "classifier.bias": "classifier.out_proj.bias",
        "sequence_summary.summary.": "classifier.dense.",
    },
    class_names={
        f"Electra{TAGGING}": {"classifier.out_proj.": "classifier."},
        f"Electra{MULTIPLE_CHOICE}": {
            "classifier.out_proj.": "classifier.",
            "classifier.dense.": "sequence_summary.summary.",
        },
    },
    buffers=BERT.buffers,
)
ROBERTA = Architecture(
    system=Bert,
    model_type="roberta",
    classes={
        "RobertaForSequenceClassification": {BODY, POOLER, CLASSIFIER},
        f"Roberta{TAGGING}": {BODY, CLASSIFIER},
        f"Roberta{MULTIPLE_CHOICE}": {BODY, POOLER, CLASSIFIER},
        "RobertaForMaskedLM": {BODY, WORD_HEAD},
        "RobertaModel": {BODY, POOLER},
    },
    whole=(POOLER, WORD_HEAD),
    settings=BERT.settings,
    # The head of its masked language model has GELU whatever the activation.
    supported={**BERT.supported, "hidden_act": "gelu", "pad_token_id": 1},
    vocab_size=50_265,
    mlp_size=3072,
    more_settings=lambda values, parts: {
        "variant": "roberta",
        "sequence_length": min(values["max_positions"], 4096),
        "pair_objective": "none",
    },
    modules={
        **{
            ours: theirs.replace("bert.", "roberta.", 1)
            for ours, theirs in BERT.modules.items()
            if ours.startswith("encoder.")
        },
        "transform": "lm_head.dense",
        "norm": "lm_head.layer_norm",
        "bias": "lm_head.bias",
        "classifier": "classifier",
    },
    prefix="roberta.",
    parts={"roberta.pooler.": POOLER, "roberta.": BODY, "lm_head.": WORD_HEAD, "classifier.": CLASSIFIER},
    ties={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    old_names={"classifier.dense.": "roberta.pooler.dense.", "classifier.out_proj.": "classifier."},
    class_names={
        "RobertaForSequenceClassification": {
            "classifier.": "classifier.out_proj.",
            "roberta.pooler.dense.": "classifier.dense.",
        }
    },
    buffers=BERT.buffers,
    position_offset=2,  # after that of the padding token, 1
    holds=lambda system: system.variant == "roberta",
)
DISTILBERT = Architecture(
    system=Bert,
    model_type="distilbert",
    classes={
        "DistilBertForSequenceClassification": {BODY, POOLER, CLASSIFIER},
        f"DistilBert{TAGGING}": {BODY, CLASSIFIER},
        f"DistilBert{MULTIPLE_CHOICE}": {BODY, POOLER, CLASSIFIER},
        "DistilBertForMaskedLM": {BODY, WORD_HEAD},
        "DistilBertModel": {BODY},
    },
    whole=(WORD_HEAD,),
    settings={
        "n_heads": "heads",
        "hidden_dim": "mlp_size",
        "activation": "activation",
        "n_layers": "layers",
        "dim": "width",
        "max_position_embeddings": "max_positions",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    vocab_size=30_522,
    mlp_size=3072,
    more_settings=lambda values, parts: {
        "variant": "distilbert",
        "sequence_length": min(values["max_positions"], 4096),
        "pair_objective": "none",
    },
    modules={
        "encoder.words": "distilbert.embeddings.word_embeddings",
        "encoder.positions": "distilbert.embeddings.position_embeddings",
        "encoder.norm": "distilbert.embeddings.LayerNorm",
        "encoder.stack.*.attention.qkv": "distilbert.transformer.layer.*.attention.q_lin|k_lin|v_lin",
        "encoder.stack.*.attention.out": "distilbert.transformer.layer.*.attention.out_lin",
        "encoder.stack.*.attention_norm": "distilbert.transformer.layer.*.sa_layer_norm",
        "encoder.stack.*.expand": "distilbert.transformer.layer.*.ffn.lin1",
        "encoder.stack.*.contract": "distilbert.transformer.layer.*.ffn.lin2",
        "encoder.stack.*.output_norm": "distilbert.transformer.layer.*.output_layer_norm",
        "encoder.pooler": "pre_classifier",
        "transform": "vocab_transform",
        "norm": "vocab_layer_norm",
        "bias": "vocab_projector.bias",
        "classifier": "classifier",
    },
    prefix="distilbert.",
    parts={"distilbert.": BODY, "pre_classifier.": POOLER, "vocab_": WORD_HEAD, "classifier.": CLASSIFIER},
    ties={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    holds=lambda system: system.variant == "distilbert",
)
GPT2 = Architecture(
    system=Gpt,
    model_type="gpt2",
    classes={f"GPT2{TAGGING}": {BODY, CLASSIFIER}, "GPT2LMHeadModel": {BODY}, "GPT2Model": {BODY}},
    settings={
        "n_head": "heads",
        "n_inner": "mlp_size",
        "activation_function": "activation",
        "embd_pdrop": "dropout",
        "n_layer": "layers",
        "n_embd": "width",
        "n_positions": "max_positions",
        "resid_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
        "layer_norm_epsilon": "norm_epsilon",
    },
    supported={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    vocab_size=50_257,
    more_settings=lambda values, parts: {"sequence_length": values["max_positions"]},
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
    },
    ties={"lm_head.weight": "transformer.wte.weight"},
    buffers=r".*\.attn\.(bias|masked_bias)",
    transposed=frozenset({"qkv", "out", "expand", "contract"}),
    holds=lambda system: system.pre_norm and not system.sink,
)


@dataclass(frozen=True, kw_only=True)
class KeelArchitecture(Architecture):
    """A system that Hugging Face does not have: tensors keep our names, with the system's for the encoder."""

    in_transformers = False

    def theirs(self, ours: str) -> tuple[str, ...]:
        return (f"{self.model_type}.{ours.removeprefix('encoder.')}" if ours.startswith("encoder.") else ours,)

    def part(self, theirs: str) -> str:
        if theirs.startswith(f"{self.model_type}."):
            return BODY
        if theirs.startswith(("crf.", "mix.", "network.", "decoder.")):
            return TASK_LAYERS
        return CLASSIFIER if theirs.startswith("classifier.") else OBJECTIVE_HEAD

    def current_name(self, theirs: str) -> str:
        return theirs


def _keel_architecture(system: type[System]) -> KeelArchitecture:
    name = system.__name__
    classes = {
        f"{name}ForSequenceClassification": {BODY, CLASSIFIER},
        f"{name}{TAGGING}": {BODY, CLASSIFIER},
        f"{name}{MULTIPLE_CHOICE}": {BODY, CLASSIFIER},
        f"{name}ForPreTraining": {BODY, OBJECTIVE_HEAD},
        f"{name}Model": {BODY},
    }
    return KeelArchitecture(system=system, model_type=system.name, classes=classes, whole=(OBJECTIVE_HEAD,))


ARCHITECTURES: dict[str, Architecture] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "gpt2": GPT2,
    **{name: _keel_architecture(system) for name, system in SYSTEMS.items() if system not in (Bert, Electra, Gpt)},
    "gpt": replace(_keel_architecture(Gpt), whole=()),  # the softmax is tied to the embeddings
}
"""By the `model_type` of config.json."""


def architecture_of(system: System) -> Architecture:
    """The architecture that a system is written as."""
    able = [one for one in ARCHITECTURES.values() if isinstance(system, one.system) and one.holds(system)]
    # A descendant may be written otherwise than its ancestor.
    return next((one for one in able if one.system is type(system)), able[0])
