"""An architecture of model folders: how Hugging Face names settings and tensors of a network, in both directions."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn

from keel.config import from_dict, to_dict
from keel.errors import KeelError
from keel.systems import SYSTEMS
from keel.systems.system import System

BODY, POOLER, CLASSIFIER = "body", "pooler", "classifier"
FOREIGN = "head of another task"
"""Also what no table knows: only tensors of known parts must all be used."""
TASK_LAYERS = "task layers beside the classifier"
TAGGING, MULTIPLE_CHOICE = "ForTokenClassification", "ForMultipleChoice"
QUESTION_ANSWERING = "ForQuestionAnswering"
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
    read_config: Callable[[Mapping[str, Any], str], Mapping[str, Any]] = lambda config, where: config
    """Their config.json, given its path, with one field for each setting."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """Fields of their config.json that hold the id of a special token, where their default would not fit."""
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
        config = self.read_config(config, where)
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
                isinstance(each, int | float) and each >= MAX_SETTING
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


@dataclass(frozen=True, kw_only=True)
class KeelArchitecture(Architecture):
    """A system that Hugging Face does not have: tensors keep our names, with the system's for the encoder."""

    in_transformers = False

    def theirs(self, ours: str) -> tuple[str, ...]:
        return (f"{self.model_type}.{ours.removeprefix('encoder.')}" if ours.startswith("encoder.") else ours,)

    def part(self, theirs: str) -> str:
        if theirs.startswith(f"{self.model_type}."):
            return BODY
        if theirs.startswith(("align.", "crf.", "mix.", "network.", "decoder.")):
            return TASK_LAYERS
        return CLASSIFIER if theirs.startswith("classifier.") else OBJECTIVE_HEAD

    def current_name(self, theirs: str) -> str:
        return theirs
