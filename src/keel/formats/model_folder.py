"""Model folders on disk: written whole or not at all, each weight with a checksum."""

import errno
import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from keel.errors import KeelError, UsageError
from keel.training.checkpoint import write_folder

STAGED = ".staged"
WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"
KINDS = {torch.float32: "F32", torch.int32: "I32"}
"""What is written as it is, and safetensors' names for it."""
TARGET = "target"
"""The folder of the tokenizer of what a model writes, if it is another than that of what it reads."""
OURS = {
    *("config.json", WEIGHTS, "keel.safetensors", "README.md"),
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt", "classes.tsv"),
}


def save_folder(folder: Path, write: Callable[[Path], None], *, overwrite: bool = False) -> None:
    """Let `write` fill `folder`: whenever the power fails, it has its old contents or the new ones; `run/` stays."""
    check_free(folder, overwrite=overwrite)
    if not folder.exists():
        write_folder(folder, write)
        return
    settle(folder)
    write_folder(folder / STAGED, write)
    settle(folder)


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """A file to fill, which gets its name when all of it is on disk; a write that fails leaves what was there."""
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "free some and run the same command again"
            raise KeelError(f"no room left on the disk to write {path}: {remedy}") from error
        raise KeelError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def check_free(folder: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder that holds anything but a run, unless it may be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder to write to")
    taken = [path.name for path in folder.glob("*") if path.name != "run" and not path.name.startswith(".")]
    if taken and not overwrite:
        raise UsageError(
            f"{folder} is not empty (it holds {taken[0]}): choose another folder, or overwrite it (--overwrite)"
        )


def settle(folder: Path) -> None:
    """Finish a save that was interrupted after all of it was written."""
    staged = folder / STAGED
    if not staged.is_dir():
        return
    try:
        # Weights move first: while they wait nothing has moved, and what does not wait is no part of the new model.
        if (staged / WEIGHTS).exists():
            for name in OURS - {path.name for path in staged.iterdir()}:
                (folder / name).unlink(missing_ok=True)
            if not (staged / TARGET).exists():
                shutil.rmtree(folder / TARGET, ignore_errors=True)
        for path in sorted(staged.iterdir(), key=lambda path: (path.name != WEIGHTS, path.name)):
            with suppress(FileNotFoundError):  # another process is finishing it too
                if path.is_dir():  # which takes the place of nothing but an empty one
                    shutil.rmtree(folder / path.name, ignore_errors=True)
                os.replace(path, folder / path.name)
        with suppress(FileNotFoundError):
            staged.rmdir()
    except OSError as error:
        raise KeelError(f"cannot finish writing {folder}: {error.strerror or error}") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file with a checksum of every tensor in its header."""
    # The library's own writer leaves the order of the metadata to chance; equal models should be equal files.
    values = {name: _stored(tensors[name].detach()).cpu().contiguous() for name in sorted(tensors)}
    sums = {name: _checksum(tensor) for name, tensor in values.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "crc32": json.dumps(sums)}}
    end = 0
    for name, tensor in values.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in values.values():
            file.write(_bytes(tensor))


def _stored(tensor: Tensor) -> Tensor:
    """Numbers in full precision, but what is counted or points somewhere as it is."""
    return tensor if tensor.dtype in KINDS else tensor.float()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file and, if it has checksums, hold every tensor to its own."""
    try:
        with safe_open(path, "pt") as file:
            sums = json.loads((file.metadata() or {}).get("crc32", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise KeelError(f"{path} {_fault(path, error)}") from None
    for name, expected in sums.items():
        if name in tensors and _checksum(tensors[name]) != expected:
            raise KeelError(f"{path}: the tensor {name} is damaged (its checksum does not fit); get the file again")
    return tensors


def read_weights(folder: Path, pickled: bool) -> dict[str, Tensor]:
    """All tensors of a folder, whole or in shards; pickles are opened only if told to, and then only tensors taken."""
    if files := _files(folder, WEIGHTS):
        return {name: tensor for path in files for name, tensor in read_tensors(path).items()}
    pickles = _files(folder, PICKLE)
    if not pickles:
        raise KeelError(f"{folder} is no model folder: it has no {WEIGHTS}")
    if not pickled:
        raise KeelError(
            f"{folder} holds its weights as a pickle ({PICKLE}), which can run any code: make a safe copy with "
            f"`keel convert {folder} NEW_FOLDER` and use that"
        )
    tensors: dict[str, Tensor] = {}
    for path in pickles:
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            tensors |= {name: tensor.detach() for name, tensor in loaded.items()}
        except (OSError, RuntimeError, EOFError, AttributeError, pickle.UnpicklingError):
            raise KeelError(f"{path} is damaged or holds more than named tensors: it is not opened") from None
    return tensors


def _files(folder: Path, name: str) -> list[Path]:
    """The file of that name or, by its index, the shards that it was cut into."""
    if (folder / name).exists():
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.exists():
        return []
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise KeelError(f"{index} cannot be read ({error}): get it again") from None
    return [folder / Path(shard).name for shard in shards]


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(_bytes(tensor))


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _fault(path: Path, error: Exception) -> str:
    if path.is_file():
        with open(path, "rb") as file:
            start = file.read(9)
        # A safetensors file may begin with the same bytes, but its header opens with a brace in ninth place.
        if start.startswith((b"\x80", b"PK\x03\x04")) and start[8:] not in (b"", b"{"):
            return f"is a pickle, which Keel does not open: name it {PICKLE} and run `keel convert` on the folder"
    return f"cannot be read as safetensors, it is cut short or damaged: get it again ({error})"
