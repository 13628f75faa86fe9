"""Folders as tar files in parts of limited size, so that they pass a machine's limits on files."""

import hashlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

PART = 15_000_000


def pack(folder: Path, parts: Path, *, half: bool = True) -> list[Path]:
    """Write a folder's files as PARTS.00, PARTS.01, ...; weights in half precision. PARTS.packed comes last: the
    hash of the whole and the number of parts."""
    whole = tar_bytes([path for path in sorted(folder.iterdir()) if path.is_file()], folder, half=half)
    for old in parts.parent.glob(f"{parts.name}.*"):
        if old.suffix == ".packed" or old.suffix[1:].isdigit():
            old.unlink()
    found = [
        write(part_path(parts, f"{number:02}"), whole[start : start + PART])
        for number, start in enumerate(range(0, len(whole), PART))
    ]
    summary = f"{hashlib.sha256(whole).hexdigest()} {len(found)}\n"
    return [*found, write(part_path(parts, "packed"), summary.encode())]


def part_path(parts: Path, suffix: str) -> Path:
    return parts.with_name(f"{parts.name}.{suffix}")


def unpack(parts: Path, folder: Path) -> None:
    """Write the files of these parts into a folder, if they are complete."""
    digest, count = part_path(parts, "packed").read_text().split()
    whole = b"".join(part_path(parts, f"{number:02}").read_bytes() for number in range(int(count)))
    if hashlib.sha256(whole).hexdigest() != digest:
        raise SystemExit(f"{parts}: the parts are damaged or of different versions: copy them again")
    extract(whole, folder)


def tar_bytes(files: Iterable[Path], root: Path, *, half: bool = False) -> bytes:
    """A tar file of these files by their paths below the root; equal for equal files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in files:
            content = path.read_bytes()
            if half and path.suffix == ".safetensors" and "quantized" not in path.name:
                content = halve(content)
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def extract(whole: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        tar.extractall(folder, filter="data")


def halve(content: bytes) -> bytes:
    """The same tensors of safetensors in half precision, those of integers unchanged."""
    import torch
    from safetensors.torch import load, save

    return save(
        {name: value.half() if value.dtype == torch.float32 else value for name, value in load(content).items()}
    )


def restore(path: Path) -> None:
    """Write the tensors of a safetensors file back in single precision: readers would compute in half precision."""
    import torch
    from safetensors.torch import load, save

    tensors = load(path.read_bytes())
    full = {name: value.float() if value.dtype == torch.float16 else value for name, value in tensors.items()}
    write(path, save(full, {"format": "pt"}))


def write(path: Path, content: bytes) -> Path:
    """Write a file at once: a killed program leaves the old one or the new one."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
    return path
