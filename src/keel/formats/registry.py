"""All file formats; loading, conversion, `keel info` and the command line use this list."""

from pathlib import Path

from keel.errors import UsageError
from keel.events import OnEvent, ignore
from keel.formats import huggingface, vector_files
from keel.formats.bundled_models import locate
from keel.formats.elmo_files import ELMO
from keel.formats.fasttext_files import FASTTEXT
from keel.formats.huggingface import HUGGINGFACE_FOLDER, KEEL_FOLDER
from keel.formats.stored_model import Format, StoredModel
from keel.formats.vector_files import GLOVE_TEXT, WORD2VEC_BINARY, WORD2VEC_TEXT
from keel.systems.system import System

FORMATS = (KEEL_FOLDER, HUGGINGFACE_FOLDER, ELMO, FASTTEXT, WORD2VEC_TEXT, WORD2VEC_BINARY, GLOVE_TEXT)
OTHER_SUFFIXES = ".csv .tsv .json .jsonl .npy .npz .pt .pth .safetensors .h5 .onnx .model .kv .gz .xz .zst .bz2 .zip"
"""Suffixes of files that Keel does not write."""


def find_format(path: str | Path) -> Format | None:
    """The format of a file or folder, or of a bundled model; None if it has none of them."""
    path = locate(path)
    return next((each for each in FORMATS if each.detect(path)), None)


def read_model(path: str | Path, on_event: OnEvent = ignore, *, pickled: bool = False) -> StoredModel:
    """Read a model or word vectors in any format, or a bundled model by its name."""
    path = locate(path)
    if found := find_format(path):
        return found.read(path, on_event, pickled=pickled)
    # No format is detected: these readers say what is wrong.
    if path.is_file():
        return vector_files.read_as_model(path, on_event, pickled=pickled)
    return huggingface.read(path, on_event, pickled=pickled)


def read_outline(path: str | Path) -> StoredModel:
    """A model without the values of its weights, for a listing: its header instead of all of a file."""
    path = locate(path)
    found = find_format(path)
    return found.outline(path) if found and found.outline else read_model(path)


def check_output(path: str | Path) -> None:
    """Refuse an output with the suffix of a file that Keel does not write."""
    suffix = Path(path).suffix
    if suffix == ".ftz":
        raise UsageError(f"{path}: Keel reads .ftz files but does not write them: name it .bin")
    written = {each for format in FORMATS for each in format.suffixes}
    if suffix in {*OTHER_SUFFIXES.split()} - written:
        known = ", ".join(sorted(written))
        raise UsageError(f"{path}: Keel writes vectors as {known} and models as folders: choose one of these")


def output_format(path: str | Path, system: System) -> Format:
    """The format to write a model of this system in, by the suffix of the output."""
    suffix = Path(path).suffix
    able = (each for each in FORMATS if each.write is not None and suffix in each.suffixes and each.holds(system))
    return next(able, KEEL_FOLDER)
