"""Checkpoints: written to a temporary folder, fsynced, then renamed, so that the last complete one always survives."""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from keel.errors import KeelError
from keel.events import OnEvent, note
from keel.training.distributed import World, copy_to_cpu, gather_tensor, shard_like
from keel.training.objective import Objective

TENSORS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
EXTRA = "extra.safetensors"
STATE = "state.json"
SUMS = "sums.json"


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Let only one run at a time write into a folder; the system releases the lock of a killed process."""
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise KeelError(f"another run is writing into {folder}: wait for it, or choose another --out") from None
    except OSError as error:
        raise KeelError(f"cannot write into {folder} ({error.strerror}): choose another --out") from None
    try:
        yield
    finally:
        lock.release()


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder atomically: `write` fills a temporary one, which is fsynced and renamed, or removed on failure."""
    temporary = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    with _disk_errors(folder, "free some space and rerun the command to resume"):
        try:
            temporary.mkdir(parents=True)
            write(temporary)
            for path in [*temporary.rglob("*"), temporary]:
                _sync(path)
            os.rename(temporary, folder)
            _sync(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name once all of it is on disk; a failed write leaves the old file."""
    temporary = path.with_name(f".{path.name}.new")
    with _disk_errors(path, "free some and rerun the command"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any, *, indent: int | None = None) -> None:
    """Write a JSON file atomically."""
    with atomic_file(path) as file:
        file.write(json.dumps(data, ensure_ascii=False, indent=indent).encode() + b"\n")


@contextmanager
def _disk_errors(path: Path, remedy: str) -> Iterator[None]:
    """Report a failed write in a sentence; `remedy` is for a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        # safetensors has the number of an error only in its message.
        found = re.search(r"os error (\d+)", str(error))
        number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise KeelError(f"no space left on the disk to write {path}: {remedy}") from error
        raise KeelError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


@dataclass
class Checkpoints:
    """The checkpoints of one run: the last `keep` and the best; none without a folder.

    A thread writes while training continues: call `wait` before reading the last one or ending the run.
    """

    folder: Path | None
    keep: int
    _writing: Future[None] | None = field(default=None, init=False, repr=False, compare=False)

    def steps(self) -> list[int]:
        """Steps with a checkpoint, oldest first."""
        if self.folder is None or not self.folder.is_dir():
            return []
        return sorted(int(path.name[5:]) for path in self.folder.iterdir() if re.fullmatch(r"step-\d+", path.name))

    def path(self, step: int) -> Path:
        assert self.folder is not None
        return self.folder / f"step-{step:08d}"

    def save(
        self,
        step: int,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        state: Mapping[str, Any],
        world: World,
        extra: Mapping[str, Tensor] = {},
    ) -> None:
        """Copy the state at `step` and start writing it. All processes gather shards; rank 0 writes."""
        self.wait()
        weights = objective.state_dict()  # before named_parameters: FSDP's state_dict reshards them
        moments = {
            f"{kind}.{name}": value
            for name, parameter in objective.named_parameters()
            for kind, value in optimizer.state.get(parameter, {}).items()
        }
        files = {TENSORS: weights, OPTIMIZER: moments} | ({EXTRA: extra} if extra else {})
        copies: dict[str, dict[str, Tensor]] = {}
        for file, tensors in files.items():
            gathered = ((name, gather_tensor(value.detach())) for name, value in tensors.items())
            copies[file] = {name: copy_to_cpu(value) for name, value in gathered if world.is_main}
        if world.is_main:
            text = json.dumps({"step": step, **state})
            executor = ThreadPoolExecutor(1, "checkpoint")
            self._writing = executor.submit(self._write, step, copies, text, state.get("best_step"))
            executor.shutdown(wait=False)  # the thread ends when the write is done

    def wait(self) -> None:
        """Wait until the last save is on disk; raises its error if it failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, step: int, tensors: dict[str, dict[str, Tensor]], state: str, best: int | None) -> None:
        """Write one checkpoint, then delete those that are neither recent nor best."""

        def write(folder: Path) -> None:
            for name, values in tensors.items():
                save_file(values, folder / name)
            (folder / STATE).write_text(state)
            (folder / SUMS).write_text(json.dumps({name: file_checksum(folder / name) for name in (*tensors, STATE)}))

        # A checkpoint of this or a later step is damaged, or the run would have resumed from it.
        for damaged in self.steps():
            if damaged >= step:
                shutil.rmtree(self.path(damaged))
        write_folder(self.path(step), write)
        for old in {*self.steps()} - {*self.steps()[-self.keep :], best}:
            shutil.rmtree(self.path(old))
        for partial in self.path(step).parent.glob(".step-*.new"):  # left by a run that was killed while saving
            shutil.rmtree(partial)

    def latest(self, on_event: OnEvent) -> dict[str, Any] | None:
        """State of the newest intact checkpoint; reports and skips damaged ones."""
        self.wait()
        for step in reversed(self.steps()):
            try:
                sums = json.loads((self.path(step) / SUMS).read_text())
                files = {TENSORS, OPTIMIZER, STATE, *sums}
                wrong = [name for name in sorted(files) if file_checksum(self.path(step) / name) != sums[name]]
                if not wrong:
                    return json.loads((self.path(step) / STATE).read_text())
                fault = f"checksum mismatch in {wrong[0]}"
            except (OSError, ValueError, KeyError, TypeError) as error:
                fault = str(error)
            remedy = "using the previous one" if step > self.steps()[0] else "there is no earlier one, so starting over"
            note(on_event, f"checkpoint {self.path(step)} is damaged ({fault}): {remedy}")
        return None

    def load(self, step: int, objective: Objective, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Load weights and optimizer state, sharded for the current number of processes; returns the extra tensors."""
        weights = load_file(self.path(step) / TENSORS)
        with torch.no_grad():
            for name, value in objective.state_dict().items():
                value.copy_(shard_like(weights[name], value))
        parameters = dict(objective.named_parameters())
        for key, value in load_file(self.path(step) / OPTIMIZER).items():
            kind, name = key.split(".", 1)
            parameter = parameters[name]
            state = value.to(parameter.device) if value.ndim == 0 else shard_like(value, parameter)
            optimizer.state[parameter][kind] = state
        path = self.path(step) / EXTRA
        return load_file(path) if path.exists() else {}
