"""The correspondence between a network's tensors in Keel and in Hugging Face's folders, in both directions."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from keel.errors import KeelError
from keel.systems.system import System

BODY, POOLER, CLASSIFIER, FOREIGN = "body", "pooler", "classifier", "head of another task"
TASK_LAYERS = "task layers beside the classifier"
TAGGING, CHOOSING = "ForTokenClassification", "ForMultipleChoice"
"""Suffixes of class names that tell the kind of labels."""
WORD_HEAD, NEXT_HEAD, OBJECTIVE_HEAD = "masked language model head", "next sentence head", "pre-training parameters"
PRETRAINING_HEADS = {WORD_HEAD, NEXT_HEAD, OBJECTIVE_HEAD}

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
    modules: dict[str, str]
    """Our modules and theirs; `a|b|c` are matrices that we keep stacked in one, `*` is a layer number."""
    prefix: str
    """Prefix of the body's tensors, except in files of the body alone."""
    parts: dict[str, str]
    """The part of a model that their tensors belong to, by prefix of the name."""
    classes: dict[str, set[str]]
    """The parts of each class; a folder is written as the first class that it has all parts of."""
    bare: str
    """The class of the body alone."""
    whole: tuple[str, ...]
    """Parts, besides the body, of a complete pre-trained model."""
    ties: dict[str, str]
    """Tied tensors: each must equal the other."""
    old_names: dict[str, str]
    """Substrings of tensor names in older folders, and what they are today."""
    buffers: re.Pattern[str]
    """Names of stored tensors that are not parameters."""
    read_settings: Callable[[Mapping[str, Any], str, set[str]], tuple[System, int]]
    """The system of a config.json, given its path and the parts of the folder; and the vocabulary size."""
    write_settings: Callable[[Any, int], dict[str, Any]]
    """The config.json of a system and its vocabulary size."""
    untrained: Callable[[Any], set[str]] = lambda system: set()
    """Parts that a system has but never trains."""
    transposed: frozenset[str] = frozenset()
    """Our modules, by the last part of the name, whose matrices they store transposed."""
    holds: Callable[[Any], bool] = lambda system: True
    """Whether the architecture can represent this system's settings."""

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

    def transpose(self, ours: str, tensor: Tensor) -> Tensor:
        """A tensor in the other side's layout."""
        module, _, parameter = ours.rpartition(".")
        turns = parameter == "weight" and module.rpartition(".")[2] in self.transposed
        return tensor.T.contiguous() if turns else tensor

    def part(self, theirs: str) -> str:
        """The part of a model that one of their tensors belongs to."""
        return next((part for start, part in self.parts.items() if theirs.startswith(start)), "unknown")

    def parts_of(self, ours: Iterable[str]) -> set[str]:
        """The parts of a model that these tensors of ours belong to."""
        return {self.part(theirs) for name in ours for theirs in self.theirs(name)}

    def current_name(self, theirs: str) -> str:
        """One of their names as they write it today, with the prefix."""
        for old, new in self.old_names.items():
            theirs = theirs.replace(old, new)
        return f"{self.prefix}{theirs}" if theirs.startswith(self._bare_starts) else theirs

    @cached_property
    def _bare_starts(self) -> tuple[str, ...]:
        bodies = [path.removeprefix(self.prefix) for path in self.modules.values() if path.startswith(self.prefix)]
        return tuple({path.partition(".")[0] + "." for path in bodies})


def read_activation(config: Mapping[str, Any], name: str, default: str, where: str) -> str:
    """Our name of an activation function in their config."""
    activation = config.get(name, default)
    known = {theirs: ours for ours, names in ACTIVATIONS.items() for theirs in names}
    if activation not in known:
        raise KeelError(f"{where}: {name} is {activation!r}; Keel knows {', '.join(known)}")
    return known[activation]


def read_size(config: Mapping[str, Any], name: str, default: int, where: str) -> int:
    """A size in their config; one whose default is 0 is optional."""
    value = config.get(name, default) if default else config.get(name) or default
    if type(value) is not int or value < min(1, default):
        raise KeelError(f"{where}: {name} must be a whole number above 0, not {value!r}")
    return value


def refuse_unsupported(config: Mapping[str, Any], supported: Mapping[str, Any], where: str, name: str) -> None:
    """Refuse a config with a value other than the only one that Keel supports."""
    for field, only in supported.items():
        if config.get(field) not in (None, only):
            raise KeelError(f"{where}: {field} is {config[field]!r}; Keel's {name} supports only {only!r}")
