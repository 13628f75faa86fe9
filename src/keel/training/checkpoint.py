"""A run's place on disk: written beside, then renamed, so that whatever happens the last whole checkpoint stands."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from keel.errors import KeelError
from keel.events import OnEvent, note
from keel.training.distributed import World, gather_tensor, shard_like
from keel.training.objective import Objective

TENSORS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
EXTRA = "extra.safetensors"
STATE = "state.json"
SUMS = "sums.json"


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Only one run at a time may write into a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise KeelError(f"cannot write into {folder} ({error.strerror}): choose another --out") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KeelError(f"another run is writing into {folder}: wait for it, or choose another --out") from None
        yield


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder beside `folder`, then put it in place in one move; nothing is left of a failed try."""
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        write(beside)
        for path in [*beside.rglob("*"), beside]:
            _sync(path)
        os.rename(beside, folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as error:
        if _errno(error) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            remedy = "free some and run the same command again"
            raise KeelError(f"no room left on the disk to write {folder}: {remedy}") from error
        raise KeelError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _errno(error: OSError | SafetensorError) -> int | None:
    """The system's number for what went wrong; safetensors says it in words alone."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _copied(value: Tensor) -> Tensor:
    """On the CPU, in memory of its own: the run goes on and changes `value`. Locked memory is filled fast by a GPU."""
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda).copy_(value)


@dataclass
class Checkpoints:
    """The checkpoints of one run: the last few and the best; without a folder there are none.

    A thread writes while the run goes on: whoever needs the last one on disk, or ends the run, calls `wait`.
    """

    folder: Path | None
    keep: int
    _writing: Future[None] | None = field(default=None, init=False, repr=False, compare=False)

    def steps(self) -> list[int]:
        """The steps that were saved, oldest first."""
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
        """Copy all there is at step `step` and start to write it. Every process gathers, the first one copies."""
        self.wait()
        weights = objective.state_dict()  # before the parameters are named: it makes shards of them again
        moments = {
            f"{kind}.{name}": value
            for name, parameter in objective.named_parameters()
            for kind, value in optimizer.state.get(parameter, {}).items()
        }
        files = {TENSORS: weights, OPTIMIZER: moments} | ({EXTRA: extra} if extra else {})
        copies: dict[str, dict[str, Tensor]] = {}
        for file, tensors in files.items():
            gathered = ((name, gather_tensor(value.detach())) for name, value in tensors.items())
            copies[file] = {name: _copied(value) for name, value in gathered if world.is_main}
        if world.is_main:
            text = json.dumps({"step": step, **state})
            writer = ThreadPoolExecutor(1, "checkpoint")
            self._writing = writer.submit(self._write, step, copies, text, state.get("best_step"))
            writer.shutdown(wait=False)  # takes no more, and ends when this is done

    def wait(self) -> None:
        """Until the last save stands on disk; what hindered it is raised here."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, step: int, tensors: dict[str, dict[str, Tensor]], state: str, best: int | None) -> None:
        """Write one checkpoint; when it stands, drop what is neither recent nor best."""

        def write(folder: Path) -> None:
            for name, values in tensors.items():
                save_file(values, folder / name)
            (folder / STATE).write_text(state)
            (folder / SUMS).write_text(json.dumps({name: file_checksum(folder / name) for name in (*tensors, STATE)}))

        # What is as far or further was found damaged, or this run would have gone on from there.
        for damaged in self.steps():
            if damaged >= step:
                shutil.rmtree(self.path(damaged))
        write_folder(self.path(step), write)
        for old in {*self.steps()} - {*self.steps()[-self.keep :], best}:
            shutil.rmtree(self.path(old))
        for torn in self.path(step).parent.glob(".step-*.new"):  # left by a run that was killed while it saved
            shutil.rmtree(torn)

    def latest(self, on_event: OnEvent) -> dict[str, Any] | None:
        """The state of the newest checkpoint that is whole; a damaged one is said and passed over."""
        self.wait()
        for step in reversed(self.steps()):
            try:
                sums = json.loads((self.path(step) / SUMS).read_text())
                files = {TENSORS, OPTIMIZER, STATE, *sums}
                wrong = [name for name in sorted(files) if file_checksum(self.path(step) / name) != sums[name]]
                if not wrong:
                    return json.loads((self.path(step) / STATE).read_text())
                fault = f"the checksum of {wrong[0]} does not fit"
            except (OSError, ValueError, KeyError, TypeError) as error:
                fault = str(error)
            remedy = (
                "going back to the one before" if step > self.steps()[0] else "there is none before it: starting anew"
            )
            note(on_event, f"the checkpoint {self.path(step)} is damaged ({fault}): {remedy}")
        return None

    def load(self, step: int, objective: Objective, optimizer: torch.optim.Optimizer) -> None:
        """Put weights and moments back, cut for however many processes there are now."""
        weights = load_file(self.path(step) / TENSORS)
        with torch.no_grad():
            for name, value in objective.state_dict().items():
                value.copy_(shard_like(weights[name], value))
        parameters = dict(objective.named_parameters())
        for key, value in load_file(self.path(step) / OPTIMIZER).items():
            kind, name = key.split(".", 1)
            parameter = parameters[name]
            held = value.to(parameter.device) if value.ndim == 0 else shard_like(value, parameter)
            optimizer.state[parameter][kind] = held

    def load_extra(self, step: int) -> dict[str, Tensor]:
        """What was saved beside weights and moments."""
        path = self.path(step) / EXTRA
        return load_file(path) if path.exists() else {}
