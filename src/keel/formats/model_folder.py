"""Atomic writes of model folders, and safetensors files with a checksum per tensor."""

import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from keel.data.folder_json import AGAIN, check_schema, read_json
from keel.errors import KeelError, UsageError
from keel.formats.quantization import CODES, DAMAGED, STEPS, dequantize, quantize
from keel.training.checkpoint import write_folder

STAGED = ".staged"
WEIGHTS = "model.safetensors"
QUANTIZED = "model.quantized.safetensors"
"""Quantised weights, under a name that no other library takes for weights."""
PICKLE = "pytorch_model.bin"
DTYPES = {torch.float32: "F32", torch.int32: "I32", torch.uint8: "U8"}
"""Dtypes that are stored, and safetensors' names for them; all others become fp32."""
TARGET = "target"
"""The folder of the tokenizer of generated text, where it differs from the input's."""
MODEL_FILES = {
    *("config.json", WEIGHTS, QUANTIZED, "keel.safetensors", "README.md", "modules.json", "sentence_bert_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt", "classes.tsv"),
}


def save_folder(folder: Path, write: Callable[[Path], None], *, overwrite: bool = False) -> None:
    """Let `write` fill `folder` atomically: after a crash it has the old contents or the new ones; `run/` stays.

    A folder that contains anything but a run is refused, unless it may be overwritten.
    """
    if folder.is_file():
        raise UsageError(f"{folder} is a file: name a folder to write to")
    taken = [path.name for path in folder.glob("*") if path.name != "run" and not path.name.startswith(".")]
    if taken and not overwrite:
        remedy = "choose another folder, or pass --overwrite to replace it"
        raise UsageError(f"{folder} is not empty (it contains {taken[0]}): {remedy}")
    if not folder.exists():
        write_folder(folder, write)
        return
    finish_interrupted_save(folder)
    write_folder(folder / STAGED, write)
    finish_interrupted_save(folder)


def finish_interrupted_save(folder: Path) -> None:
    """Complete a save that was interrupted after all files were written."""
    staged = folder / STAGED
    if not staged.is_dir():
        return
    try:
        # Weights move first: while they are staged no file has moved, and files not staged are not of the new model.
        if (staged / WEIGHTS).exists():
            for name in MODEL_FILES - {path.name for path in staged.iterdir()}:
                (folder / name).unlink(missing_ok=True)
            if not (staged / TARGET).exists():
                shutil.rmtree(folder / TARGET, ignore_errors=True)
        for path in sorted(staged.iterdir(), key=lambda path: (path.name != WEIGHTS, path.name)):
            with suppress(FileNotFoundError):  # another process completes it too
                if path.is_dir():  # a folder can only replace an empty one
                    shutil.rmtree(folder / path.name, ignore_errors=True)
                os.replace(path, folder / path.name)
        with suppress(FileNotFoundError):
            staged.rmdir()
    except OSError as error:
        raise KeelError(f"cannot finish writing {folder}: {error.strerror or error}") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, steps_per_rms: float | None = None) -> None:
    """Write a safetensors file with a checksum of each tensor in its header; with `steps_per_rms`, quantised."""
    if steps_per_rms:
        tensors = quantize(tensors, steps_per_rms)
    # The library's own writer has no fixed order of metadata; equal models should be equal files.
    stored = {name: tensor if tensor.dtype in DTYPES else tensor.float() for name, tensor in sorted(tensors.items())}
    values = {name: tensor.detach().cpu().contiguous() for name, tensor in stored.items()}
    sums = {name: _checksum(tensor) for name, tensor in values.items()}
    metadata = {"format": "pt", "crc32": json.dumps(sums)} | ({"quantized": "true"} if steps_per_rms else {})
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in values.items():
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in values.values():
            file.write(_bytes(tensor))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file and verify its checksums, if it has any; quantised matrices become fp32."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            sums = json.loads(metadata.get("crc32", "{}"))
            check_schema(sums, {...: int}, path, "crc32")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except KeelError:
        raise
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise KeelError(f"{path} {_fault(path, error)}") from None
    for name, expected in sums.items():
        if name in tensors and _checksum(tensors[name]) != expected:
            raise KeelError(f"{path}: the tensor {name} is damaged (wrong checksum); download or copy the file again")
    try:
        return dequantize(tensors) if "quantized" in metadata else tensors
    except DAMAGED as error:
        raise KeelError(f"{path} has damaged quantised weights: download or copy the file again ({error})") from None


def read_outlines(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file without their values, on the meta device, from its header; a quantised matrix
    has no columns, as their number is not stored."""
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {
                name: torch.empty(each.get_shape(), dtype=_outline_dtype(each.get_dtype()), device="meta")
                for name, each in slices.items()
            }
    except (SafetensorError, OSError, ValueError) as error:
        raise KeelError(f"{path} {_fault(path, error)}") from None
    packed = {name.removesuffix(CODES) for name in found if name.endswith(CODES)}
    matrices = {name: found[name + STEPS].new_empty(len(found[name + STEPS]), 0) for name in packed}
    parts = {name + part for name in packed for part in (CODES, STEPS)}
    return matrices | {name: tensor for name, tensor in found.items() if name not in parts}


def read_weights(folder: Path, pickled: bool, *, values: bool = True) -> dict[str, Tensor]:
    """All tensors of a folder, in one file or in shards; a pickle is opened only if `pickled`, for its tensors. Without
    `values`, as by `read_outlines`."""
    if files := _files(folder, WEIGHTS) or _files(folder, QUANTIZED):
        read_file = read_tensors if values else read_outlines
        return {name: tensor for path in files for name, tensor in read_file(path).items()}
    pickles = _files(folder, PICKLE)
    if not pickles:
        raise KeelError(f"{folder} is not a model folder: it has no {WEIGHTS}")
    if not pickled:
        what = f"stores its weights as a pickle ({PICKLE}), which can run any code"
        raise KeelError(f"{folder} {what}: make a safe copy with `keel convert {folder} NEW_FOLDER` and use that")
    tensors: dict[str, Tensor] = {}
    for path in pickles:
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            tensors |= {name: tensor.detach() for name, tensor in loaded.items()}
        except (OSError, RuntimeError, EOFError, AttributeError, pickle.UnpicklingError):
            raise KeelError(f"{path} is damaged or contains more than named tensors: it is not opened") from None
    return tensors


def _files(folder: Path, name: str) -> list[Path]:
    """The file of that name, or its shards by their index."""
    if (folder / name).exists():
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.exists():
        return []
    names = read_json(index, {"weight_map": {...: str}})
    if "weight_map" not in names:
        raise KeelError(f"{index} lacks 'weight_map', the file of each tensor: {AGAIN}")
    return [folder / Path(shard).name for shard in sorted({*names["weight_map"].values()})]


def _outline_dtype(name: str) -> torch.dtype:
    """A dtype of the same kind as this one of safetensors: floating-point numbers or integers."""
    return torch.float32 if name.startswith(("F", "BF")) else torch.int32


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(_bytes(tensor))


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _fault(path: Path, error: Exception) -> str:
    if path.is_file():
        with open(path, "rb") as file:
            start = file.read(9)
        # A safetensors file may begin with the same bytes, but its ninth byte is the brace that opens the header.
        if start.startswith((b"\x80", b"PK\x03\x04")) and start[8:] not in (b"", b"{"):
            return f"is a pickle, which Keel does not open: rename it to {PICKLE} and run `keel convert` on the folder"
    return f"is no valid safetensors file, it is truncated or damaged: download or copy it again ({error})"
