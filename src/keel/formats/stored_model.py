"""A model as read from or written to disk, whatever the file format; and what a file format is."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from keel.data.folder_json import AGAIN
from keel.data.label_kinds import LABEL_KINDS, ChoiceLabel, LabelKind, Regression, SingleLabel, SpanLabel, TagLabels
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import OnEvent
from keel.formats.architectures import architecture_of
from keel.formats.folder_architecture import MULTIPLE_CHOICE, PRETRAINING_HEADS, QUESTION_ANSWERING, TAGGING
from keel.nn.encoder import Encoder
from keel.nn.meta_device import meta_device
from keel.nn.pooling import SentencePooling
from keel.systems.system import System

LABEL_COUNTS = "label_counts"
"""Name of the labels' counts among the settings of a task."""
CLASS_SUFFIXES: dict[LabelKind, str] = {
    TagLabels(): TAGGING,
    ChoiceLabel(): MULTIPLE_CHOICE,
    SpanLabel(): QUESTION_ANSWERING,
}
"""Suffixes of Hugging Face's classes for kinds of labels."""
BLOCK = 4096
"""Words whose vectors are computed at once."""


@dataclass(frozen=True)
class Vectors:
    """Distinct words and their vectors."""

    words: list[str]
    matrix: np.ndarray
    """[words, width] float32"""

    def __post_init__(self) -> None:
        assert self.matrix.ndim == 2
        assert len(self.words) == len(self.matrix)


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """The contents of a model folder or file."""

    system: System
    tokenizer: Tokenizer
    target_tokenizer: Tokenizer | None = None
    """The tokenizer of generated text, where it differs from the input's."""
    vocab_size: int
    """Embeddings of the encoder; the tokenizer may have fewer tokens."""
    tensors: dict[str, Tensor]
    """By the names of objective and task; the encoder's begin with `encoder.`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """config.json."""
    sentence_pooling: SentencePooling | None = None
    """How sentence embeddings are made, if a sentence-transformers folder defines it."""
    readme: str = ""
    """The model card."""
    extra_files: Mapping[str, str] = field(default_factory=dict)
    """Text files for people to read."""

    @property
    def task(self) -> dict[str, Any]:
        """Our fields of the task in config.json; empty without a task, and in a folder of others."""
        return self.config.get("keel", {}).get("task", {})

    @property
    def is_outline(self) -> bool:
        """Whether the tensors have no values."""
        return any(tensor.is_meta for tensor in self.tensors.values())

    def lacks_shape(self, name: str) -> bool:
        """Whether a tensor of an outline is a quantised matrix, whose number of columns is not stored."""
        return self.tensors[name].is_meta and not self.tensors[name].numel()

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts of a complete pre-trained model that the tensors lack."""
        architecture = architecture_of(self.system)
        held = architecture.parts_of(self.tensors)
        return tuple(part for part in architecture.whole if part not in held)

    @property
    def has_objective(self) -> bool:
        """Whether the parameters of the pre-training objective are there, or it has none of its own."""
        heads = PRETRAINING_HEADS & set(architecture_of(self.system).whole)
        return not heads or not heads <= set(self.missing)

    @property
    def labels(self) -> tuple[str, ...]:
        """The classifier's labels in order, `LABEL_0` and so on if they have no names; empty without a classifier."""
        outputs = len(self.tensors.get("classifier.weight", ()))
        names = {str(number): str(name) for number, name in (self.config.get("id2label") or {}).items()}
        numbers = [str(number) for number in range(outputs)]
        if set(names) != set(numbers):  # left over from before the classifier was added
            return tuple(f"LABEL_{number}" for number in numbers)
        return tuple(names[number] for number in numbers)

    @property
    def label_counts(self) -> tuple[int, ...]:
        """Training examples of each class; empty if unknown."""
        return tuple(self.config.get("keel", {}).get("task", {}).get(LABEL_COUNTS, ()))

    @property
    def label_kind(self) -> LabelKind:
        """The kind of these labels."""
        if suffix := class_suffix(str((self.config.get("architectures") or [""])[0])):
            return next(kind for kind, each in CLASS_SUFFIXES.items() if each == suffix)
        if problem := self.config.get("problem_type"):
            for kind in LABEL_KINDS.values():
                if kind.problem_type == problem:
                    return kind()
        return Regression() if len(self.labels) == 1 else SingleLabel()

    def word_vectors(self) -> Vectors:
        """The vectors of the vocabulary."""
        with meta_device():
            encoder = self.system.build_encoder(self.vocab_size)
        weights = {name: tensor for name, tensor in self.tensors.items() if name.startswith("encoder.")}
        nn.ModuleDict({"encoder": encoder}).load_state_dict(weights, assign=True)
        return word_vectors(self.system, encoder, self.tokenizer)


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format of models or word vectors: a file or a folder."""

    name: str
    detect: Callable[[Path], bool]
    """Whether a file or folder has this format, by its first bytes or its files."""
    read: Callable[..., StoredModel]
    """`read(path, on_event, pickled=False)`: all of it, or an error; `pickled` allows tensors from a pickle."""
    outline: Callable[[Path], StoredModel] | None = None
    """All but the values of the tensors, which are on the meta device, from settings and headers; of a file of vectors,
    with its first words only. None: `read` is fast enough."""
    write: Callable[[Path, StoredModel, bool], None] | None = None
    """`write(path, stored, overwrite)`: write, read back and compare; None: Keel only reads this format."""
    system: Callable[[Path], type[System]]
    """The system of a file, without reading its weights."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of the files that are written in this format; none for a folder."""
    holds: Callable[[System], bool] = lambda system: True
    """Whether it is the format to write models of this system in."""
    read_vectors: Callable[[Path, OnEvent], Vectors] | None = None
    """The reader of a format that holds nothing but word vectors."""


def word_vectors(system: System, encoder: Encoder, tokenizer: Tokenizer) -> Vectors:
    """The words of a vocabulary and their vectors, without special tokens."""
    table = encoder.word_embeddings()
    if table is None:
        what = "gives all words the same distance" if encoder.sparse else "has no vectors of single words"
        raise KeelError(f"{system.name} {what}: use word2vec or another system with word vectors")
    special = set(tokenizer.special_ids)
    ids = [number for number in range(len(tokenizer)) if number not in special]
    if system.uses_subwords:
        matrix = np.empty((len(ids), encoder.width), np.float32)
        for start in range(0, len(ids), BLOCK):
            batch = system.with_subword_units(TokenBatch.pad([ids[start : start + BLOCK]]), tokenizer)
            with torch.inference_mode():
                matrix[start : start + BLOCK] = encoder.embed(batch.to(table.device))[0].float().cpu().numpy()
    else:
        rows = slice(ids[0], ids[-1] + 1) if len(ids) == ids[-1] - ids[0] + 1 else ids  # a slice makes no copy
        matrix = table.detach()[rows].float().cpu().numpy()
    return Vectors([tokenizer.token_of(number) for number in ids], matrix)


@contextmanager
def refusing_impossible_networks(config: Path) -> Iterator[None]:
    """Refuse sizes in a config.json that no network can have; nothing is allocated on the meta device."""
    try:
        yield
    except (RuntimeError, OverflowError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise KeelError(f"{config}: its settings do not fit the weights or any network ({reason}): {AGAIN}") from None


def class_suffix(named: str) -> str:
    """The suffix of a class name that tells the kind of labels, if it has one."""
    return next((suffix for suffix in CLASS_SUFFIXES.values() if named.endswith(suffix)), "")


def label_settings(labels: tuple[str, ...] | list[str], problem_type: str = "") -> dict[str, Any]:
    """The labels of a classifier, and their problem type if it is given, as in config.json."""
    names = list(labels) or ["LABEL_0"]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        **({"problem_type": problem_type} if problem_type else {}),
    }
