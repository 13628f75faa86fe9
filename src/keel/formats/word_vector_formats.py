"""Word vector files as models: word2vec text and binary, GloVe text."""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore
from keel.formats.architecture import OBJECTIVE_HEAD
from keel.formats.stored_model import Format, StoredModel
from keel.formats.vector_files import Layout, Vectors, layout_of, read_vectors, write_vectors
from keel.formats.vector_header import LAYOUTS
from keel.systems.word2vec import Word2vec


def stored_vectors(vectors: Vectors) -> StoredModel:
    """Word vectors as a model without context."""
    tokenizer = Tokenizer.from_words(vectors.words)
    weights = torch.zeros(len(tokenizer), vectors.matrix.shape[1])  # special tokens stay zero
    weights[[tokenizer.id_of(word) for word in vectors.words]] = torch.from_numpy(vectors.matrix)
    return StoredModel(
        system=Word2vec(width=vectors.matrix.shape[1]),
        tokenizer=tokenizer,
        vocab_size=len(tokenizer),
        tensors={"encoder.words.weight": weights},
        config={},
        missing=(OBJECTIVE_HEAD,),
    )


def read(path: Path, on_event: OnEvent = ignore, *, pickled: bool = False) -> StoredModel:
    """Read a word vector file as a model."""
    return stored_vectors(read_vectors(path, on_event=on_event))


def _write(layout: Layout, path: Path, stored: StoredModel, overwrite: bool = False) -> None:
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists: choose another file, or pass --overwrite to replace it")
    vectors = stored.word_vectors()
    write_vectors(path, vectors, layout=layout)
    copy = read_vectors(path)
    if copy.words != vectors.words or not np.array_equal(copy.matrix, vectors.matrix):
        raise KeelError(f"{path}: the vectors differ when they are read back: do not use this file")


def _format(layout: Layout, *suffixes: str) -> Format:
    return Format(
        name=LAYOUTS[layout],
        detect=lambda path: layout_of(path) == layout,
        read=read,
        write=partial(_write, layout),
        system=lambda path: Word2vec,
        suffixes=suffixes,
        vectors=True,
    )


WORD2VEC_TEXT = _format("text", ".txt", ".vec")
WORD2VEC_BINARY = _format("binary", ".bin")
GLOVE_TEXT = _format("glove", ".glove")
