"""A run of a verb: its settings, each put where it belongs, and its folder, for one run alone."""

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
from keel.events import Event, OnEvent, counted, ignore
from keel.formats.model_folder import OURS, TARGET
from keel.training.checkpoint import run_lock
from keel.training.distributed import World

SLIGHT = {".lock", "log.jsonl", "recipe.toml"}
"""What a run writes before it has done anything."""
LEARNING = ("step", "checkpoint")
"""Events of a run that has taken steps."""
TOKENIZER = "tokenizer-"
"""How the names of tokenizers in run/ begin."""


@contextmanager
def run_folder(
    out: str | Path | None, verb: str, overwrite: bool, world: World, on_event: OnEvent
) -> Iterator[tuple[Path | None, OnEvent]]:
    """The run/ folder inside `out`, if there is to be one, and an on_event that also writes run/log.jsonl; of a run
    that is refused before it starts to learn nothing is left, and what it was to overwrite stands as it did. What
    another verb has begun is gone on with by that verb alone."""
    run = None if out is None else Path(out) / "run"
    if run is None or not world.is_main:
        if run:
            world.barrier()  # until an old run is out of the way, or back in its place
        yield run, on_event if world.is_main else ignore
        return
    _refuse_foreign(run.parent, verb, overwrite)
    new = [folder for folder in (run, *run.parents) if not folder.exists()]
    planned = learned = False
    with ExitStack() as locks:
        locks.enter_context(run_lock(run))
        shutil.rmtree(_replaced(run), ignore_errors=True)
        if _aside(run).exists():  # the run that was to replace it was killed before it learned
            _put_back(run)
            locks.enter_context(run_lock(run))
        replacing = overwrite and (len([*run.iterdir()]) > 1 or _is_model_of_ours(run.parent))  # one is the lock
        if replacing:
            run.rename(_aside(run))
            locks.enter_context(run_lock(run))
        world.barrier()
        before = {path.name for path in run.iterdir()}
        logged = (run / "log.jsonl").stat().st_size if "log.jsonl" in before else 0
        try:
            with open(run / "log.jsonl", "a", encoding="utf-8") as log:

                def record(event: Event) -> None:
                    log.write(json.dumps({"time": round(time.time(), 3), **event}, ensure_ascii=False) + "\n")
                    log.flush()

                def say(event: Event) -> None:
                    nonlocal planned, learned, replacing
                    planned = planned or event["event"] == "plan"
                    learned = learned or event["event"] in LEARNING
                    if replacing and event["event"] in LEARNING:
                        replacing = False
                        old = _aside(run).rename(_replaced(run))  # a name from which nothing comes back
                        _drop_model(run.parent)
                        shutil.rmtree(old, ignore_errors=True)
                    record(event)
                    on_event(event)

                if not log.tell():
                    record({"event": "start", "verb": verb})
                yield run, say
        except BaseException as error:
            if replacing:
                _put_back(run)
            if isinstance(error, Interrupted) and overwrite and str(error).endswith("to resume"):
                raise Interrupted(f"{error}, without --overwrite, which starts from scratch") from None
            # A tokenizer may have taken long to learn, and the next run finds it there.
            refused = isinstance(error, KeelError) and not isinstance(error, Interrupted) and not planned
            if refused and run in new and {path.name for path in run.iterdir()} <= SLIGHT:
                shutil.rmtree(run)
                with suppress(OSError):  # somebody else has begun to use them
                    for folder in new[1:]:
                        folder.rmdir()
            elif refused and not learned and not replacing and any(run.rglob("checkpoints")):
                # They are of a run that this is not: it stays as it was.
                for tokenizer in run.glob(f"{TOKENIZER}*"):
                    if tokenizer.name not in before:
                        shutil.rmtree(tokenizer)
                os.truncate(run / "log.jsonl", logged)
            raise


def _aside(run: Path) -> Path:
    """Where a run waits until the one that is to replace it learns; its model stays in place as long."""
    return run.with_name(".run.waiting")


def _replaced(run: Path) -> Path:
    """Where a run lies that is being removed."""
    return run.with_name(".run.replaced")


def _put_back(run: Path) -> None:
    """Let the run that waits take its place again; of the other no more is kept than tokenizers."""
    aside = _aside(run)
    for learned in run.glob(f"{TOKENIZER}*"):
        if not (aside / learned.name).exists():
            learned.rename(aside / learned.name)
    shutil.rmtree(run)
    aside.rename(run)


def _drop_model(out: Path) -> None:
    """Remove an earlier model, and nothing of anybody else's."""
    for name in OURS:
        (out / name).unlink(missing_ok=True)
    if (out / TARGET / "tokenizer.json").exists():
        shutil.rmtree(out / TARGET)


def _refuse_foreign(out: Path, verb: str, overwrite: bool) -> None:
    """A run of ours is gone on with, or replaced if that is allowed; anything else that stands there stays."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file: name a folder to write to")
    contents = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.is_dir() else []
    logs = [log for run in (_aside(out / "run"), out / "run") if (log := run / "log.jsonl").exists()]
    begun = bool(logs)
    if contents and not begun and not _is_model_of_ours(out):
        raise UsageError(f"{out} is not empty (it holds {contents[0]}) and no folder of Keel's: choose another --out")
    if contents and not begun and not overwrite:
        raise UsageError(f"{out} holds a model: choose another --out, or --overwrite to replace it")
    if logs and not overwrite and (other := _begun_by(logs[0])) not in ("", verb):
        raise UsageError(f"{out} holds what keel {other} made: choose another --out, or --overwrite to replace it")


def _begun_by(log: Path) -> str:
    """The verb of a run, "" if its log does not say."""
    with open(log, encoding="utf-8") as lines:
        try:
            return json.loads(lines.readline()).get("verb", "")
        except ValueError:  # nothing was written yet
            return ""


def _is_model_of_ours(folder: Path) -> bool:
    try:
        return "keel" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def refuse_same(parent: str | Path, out: str | Path) -> None:
    """A model is never written over the one that it starts from."""
    if Path(parent).resolve() == Path(out).resolve():
        raise UsageError(f"{out} is the model to start from: choose another --out, so that it is not lost")


def hardware(device: torch.device) -> str:
    """What a run runs on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {counted(torch.get_num_threads(), 'thread')}"
