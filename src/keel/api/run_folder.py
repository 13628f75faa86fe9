"""The run/ folder inside a model folder: log, recipe, tokenizer and checkpoints of one run, locked for one process."""

import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch

from keel.errors import Interrupted, KeelError, UsageError
from keel.events import Event, OnEvent, ignore, pluralize
from keel.formats.huggingface import is_keel_folder
from keel.formats.model_folder import MODEL_FILES, TARGET
from keel.training.checkpoint import run_lock
from keel.training.distributed import World
from keel.training.loop import History

INITIAL_FILES = {".lock", "log.jsonl", "phrases.txt", "recipe.toml"}
"""Files that a run writes before training."""
TRAINING_EVENTS = ("step", "checkpoint")
"""Events of a run that has made updates."""
TOKENIZER = "tokenizer-"
"""Prefix of tokenizer folders in run/."""
WAITING, REPLACED = ".run.waiting", ".run.replaced"
"""An old run until the run that replaces it starts training, and from then until it is removed."""


@contextmanager
def run_folder(
    out: str | Path | None, verb: str, overwrite: bool, world: World, on_event: OnEvent
) -> Iterator[tuple[Path | None, OnEvent]]:
    """The run/ folder inside `out`, if given, and an on_event that also writes run/log.jsonl.

    A run that fails before training leaves nothing behind, and what it was to overwrite stays. Only the verb that
    started a run resumes it.
    """
    run = None if out is None else Path(out) / "run"
    if run is None or not world.is_main:
        if run:
            world.barrier()  # until an old run is moved aside or back
        yield run, on_event if world.is_main else ignore
        return
    _check_folder(run.parent, verb, overwrite)
    new = [folder for folder in (run, *run.parents) if not folder.exists()]
    planned = trained = False
    with ExitStack() as locks:
        locks.enter_context(run_lock(run))
        shutil.rmtree(run.with_name(REPLACED), ignore_errors=True)
        if run.with_name(WAITING).exists():  # the run that was to replace it was killed before training
            _restore(run)
            locks.enter_context(run_lock(run))
        replacing = overwrite and (len([*run.iterdir()]) > 1 or is_keel_folder(run.parent))  # one is the lock
        if replacing:
            run.rename(run.with_name(WAITING))
            locks.enter_context(run_lock(run))
        world.barrier()
        before = {path.name for path in run.iterdir()}
        logged = (run / "log.jsonl").stat().st_size if "log.jsonl" in before else 0
        try:
            with open(run / "log.jsonl", "a", encoding="utf-8") as log:

                def record(event: Event) -> None:
                    log.write(json.dumps({"time": round(time.time(), 3), **event}, ensure_ascii=False) + "\n")
                    log.flush()

                def report(event: Event) -> None:
                    nonlocal planned, trained, replacing
                    planned = planned or event["event"] == "plan"
                    trained = trained or event["event"] in TRAINING_EVENTS
                    if replacing and event["event"] in TRAINING_EVENTS:
                        replacing = False
                        old = run.with_name(WAITING).rename(run.with_name(REPLACED))  # from here on it is not restored
                        _drop_model(run.parent)
                        shutil.rmtree(old, ignore_errors=True)
                    record(event)
                    on_event(event)

                if not log.tell():
                    record({"event": "start", "verb": verb})
                yield run, report
        except BaseException as error:
            if replacing:
                _restore(run)
            if isinstance(error, Interrupted) and overwrite:
                raise Interrupted(f"{error}, without --overwrite, which starts over") from None
            # A tokenizer may have taken long to train: the next run reuses it.
            refused = isinstance(error, KeelError) and not isinstance(error, Interrupted) and not planned
            if refused and run in new and {path.name for path in run.iterdir()} <= INITIAL_FILES:
                shutil.rmtree(run)
                with suppress(OSError):  # another process uses them
                    for folder in new[1:]:
                        folder.rmdir()
            elif refused and not trained and not replacing and any(run.rglob("checkpoints")):
                # The checkpoints belong to another run: leave it unchanged.
                for tokenizer in run.glob(f"{TOKENIZER}*"):
                    if tokenizer.name not in before:
                        shutil.rmtree(tokenizer)
                os.truncate(run / "log.jsonl", logged)
            raise


def _restore(run: Path) -> None:
    """Move the old run back; of the new one only tokenizers are kept."""
    aside = run.with_name(WAITING)
    for tokenizer in run.glob(f"{TOKENIZER}*"):
        if not (aside / tokenizer.name).exists():
            tokenizer.rename(aside / tokenizer.name)
    shutil.rmtree(run)
    aside.rename(run)


def _drop_model(out: Path) -> None:
    """Remove an earlier model's files, and no others."""
    for name in MODEL_FILES:
        (out / name).unlink(missing_ok=True)
    if (out / TARGET / "tokenizer.json").exists():
        shutil.rmtree(out / TARGET)


def _check_folder(out: Path, verb: str, overwrite: bool) -> None:
    """Refuse a folder that is neither free, nor the same run (which resumes), nor to be overwritten."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: name a folder to write to")
    contents = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.is_dir() else []
    logs = [log for run in (out / WAITING, out / "run") if (log := run / "log.jsonl").exists()]
    started = bool(logs)
    if contents and not started and not is_keel_folder(out):
        raise UsageError(f"{out} is not empty (it contains {contents[0]}) and not a Keel model: choose another --out")
    if contents and not started and not overwrite:
        raise UsageError(f"{out} contains a model: choose another --out, or pass --overwrite to replace it")
    if logs and not overwrite and (other := _started_by(logs[0])) not in ("", verb):
        raise UsageError(
            f"{out} contains a run of keel {other}: choose another --out, or pass --overwrite to replace it"
        )


def _started_by(log: Path) -> str:
    """The verb that started a run, "" if its log does not say."""
    with open(log, encoding="utf-8") as lines:
        try:
            return json.loads(lines.readline()).get("verb", "")
        except ValueError:  # the log is empty
            return ""


def hardware(device: torch.device, history: History | None = None) -> str:
    """The device of a run, for the model card."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = (history and history.threads) or torch.get_num_threads()
    hogwild = ", nondeterministic (Hogwild)" if history and history.nondeterministic else ""
    return f"{platform.machine()} CPU, {pluralize(threads, 'thread')}{hogwild}"
