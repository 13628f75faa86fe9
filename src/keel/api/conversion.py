"""Conversion between model folders, vector files and fastText's binary format."""

from pathlib import Path
from typing import Literal

import numpy as np

from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore
from keel.formats import elmo_files, fasttext_files, huggingface
from keel.formats.vector_files import read_vectors, write_vectors
from keel.model import Model
from keel.systems.fasttext import FastText

VECTOR_FILES: dict[str, Literal["text", "binary"]] = {".txt": "text", ".vec": "text", ".bin": "binary"}


OTHER_FILES = ".csv .tsv .json .jsonl .npy .npz .pt .pth .safetensors .h5 .onnx .model .kv .gz .xz .zst .bz2 .zip"
"""Endings that promise a file which Keel does not write."""


def convert(source: str | Path, out: str | Path, *, overwrite: bool = False, on_event: OnEvent = ignore) -> None:
    """Make a Keel folder of a model or a vector file that others saved, and check that both give the same numbers.

    A target named .txt, .vec or .bin gets the vectors of words alone, in word2vec's formats; a fastText's .bin is its
    own, with all that it knows.
    """
    if Path(out).suffix == ".ftz":
        raise UsageError(f"{out}: Keel reads .ftz files but does not write them: name it .bin")
    if Path(out).suffix in VECTOR_FILES:
        if Path(out).exists() and not overwrite:
            raise UsageError(f"{out} is there already: name another, or give --overwrite")
        model = Model.load(source, on_event=on_event)
        if Path(out).suffix == ".bin" and isinstance(model.system, FastText):
            fasttext_files.write(Path(out), model.system, model.tokenizer, model.tensors(), model.label_names)
            return
        space = model.vector_space()
        write_vectors(Path(out), space, form=VECTOR_FILES[Path(out).suffix])
        copy = read_vectors(out)
        if copy.words != space.words or not np.array_equal(copy.matrix, space.matrix):
            raise KeelError(f"{source}: the vectors came back changed from {out}: do not use it")
    elif Path(out).suffix in OTHER_FILES.split():
        raise UsageError(f"{out}: vectors are written as .txt, .vec or .bin and models as folders: name one of these")
    elif Path(source).is_file() or elmo_files.is_elmo(source):
        model = Model.load(source, on_event=on_event)
        model.save(out, overwrite=overwrite)
        if Model.load(out).fingerprint() != model.fingerprint():
            raise KeelError(f"{source}: the weights came back changed from {out}: do not use it")
    else:
        huggingface.convert(Path(source), Path(out), overwrite=overwrite, on_event=on_event)
