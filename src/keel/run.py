"""A run of a verb: its settings, each put where it belongs, and its folder, for one run alone."""

import json
import os
import platform
import re
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

import torch

from keel.config import replace, unknown_name
from keel.errors import Interrupted, KeelError, UsageError
from keel.events import Event, OnEvent, counted, ignore
from keel.formats.folder import OURS, TARGET
from keel.systems.base import System
from keel.text.corpus import Corpus
from keel.train.checkpoint import exclusive
from keel.train.parallel import World
from keel.train.plan import Train

SLIGHT = {".lock", "log.jsonl", "recipe.toml"}
"""What a run writes before it has done anything."""
LEARNING = ("step", "checkpoint")
"""Events of a run that has taken steps."""
TOKENIZER = "tokenizer-"
"""How the names of tokenizers in run/ begin."""
ENDING = re.compile(r"[\w*?\]]\.(txt|text|md|json|jsonl|csv|tsv|parquet)(\.(gz|xz|zst|bz2))?$", re.IGNORECASE)
"""Of a file's name, or of a pattern of names."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """How a corpus is read and cut into pieces."""

    text_column: str = "text"
    """Which column of a csv, tsv, jsonl or parquet file is the text."""
    encoding: str = "auto"
    """Of the files; auto tries UTF-8, then GB18030."""
    dedup: Literal["none", "lines", "documents"] = "none"
    """What to keep only once."""
    sentences: Literal["auto", "split", "lines", "none"] = "auto"
    """How sentences are told apart: by their marks (split), as lines alone, where text is cut already, or not at all,
    so that text keeps its blanks and line breaks (none); auto is for the system to decide."""
    tokenizer: str = "auto"
    """wordpiece, bpe, words or characters; or a folder whose tokenizer is taken as it is."""
    vocabulary: int = 0
    """Pieces to learn, at most; 0 is the system's own number, of byte pairs those that come 10 times or more."""
    min_count: int = 0
    """Times that a word must come to be learned; 0 is the system's own number, 1 learns all."""
    phrases: int = 0
    """Passes that join words to phrases, as in new_york."""
    lowercase: Literal["auto", "yes", "no"] = "auto"
    """Whether capital letters are one with small ones."""
    sample: int = 200_000_000
    """Bytes of text that the tokenizer learns from."""
    held_out: float = 0.01
    """Share of the text that is only evaluated on."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out <= 0.5:
            raise UsageError(f"held_out must lie between 0 and 0.5, not at {self.held_out}: it is a share of the text")
        if self.sample <= 0 or 0 != self.vocabulary < 10:
            raise UsageError("sample must be above 0 bytes and vocabulary 10 pieces or more")
        if self.min_count < 0 or self.phrases < 0:
            raise UsageError("min_count and phrases must not be below 0")

    def settled(self, system: System) -> Self:
        """The same, with what was left to the system."""
        return replace(self, sentences=system.sentences) if self.sentences == "auto" else self


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """How a new model, which learns from examples alone, cuts their text into pieces."""

    tokenizer: str = "auto"
    """wordpiece, bpe, words or characters; auto is the system's own kind, and where it is to write text bpe, for
    Chinese characters."""
    vocabulary: int = 0
    """Pieces to learn, at most; 0 is the system's own number."""
    separate: bool = False
    """For rewrite: one vocabulary for what is read and another for what is written."""

    KINDS = ("auto", "wordpiece", "bpe", "words", "characters")

    def __post_init__(self) -> None:
        if self.tokenizer not in self.KINDS:
            raise UsageError(f"tokenizer must be one of {', '.join(self.KINDS)}, not {self.tokenizer!r}")
        if 0 != self.vocabulary < 10:
            raise UsageError(f"vocabulary must be 10 pieces or more, not {self.vocabulary}")


def route(settings: dict[str, Any], *targets: Any, only: Collection[str] | None = None) -> list[Any]:
    """The targets with each setting put where a field has its name; of the first, a System, `only` these may change."""
    given: list[dict[str, Any]] = [{} for _ in targets]
    names = [{field.name for field in fields(target)} for target in targets]
    fixed: set[str] = set()
    if only is not None:
        fixed = names[0] - set(only)
        names[0] -= fixed
    for name, value in settings.items():
        place = next((number for number, known in enumerate(names) if name in known), None)
        if place is None and name in fixed:
            raise _fixed(name, targets[0], sorted(names[0]))
        if place is None:
            raise unknown_name(name, set().union(*names), "the settings")
        given[place][name] = value
    for target, values in zip(targets, given, strict=True):
        if isinstance(target, Train) and set(Train.LENGTHS) & values.keys():
            # One way to say how long takes the place of another.
            values |= {name: values.get(name, 0) for name in Train.LENGTHS}
    return [replace(target, **values) for target, values in zip(targets, given, strict=True)]


def _fixed(name: str, system: System, free: list[str]) -> UsageError:
    """The error for a setting of a system that this verb cannot change in a trained model."""
    if name in system.tunable:
        return UsageError(f"{name} is for learning from text: leave it out, or change it by keel pretrain")
    more = f"; what may change is {', '.join(free)}" if free else ""
    what = f"{name} is the model's shape and cannot change"
    return UsageError(f"{what}: leave it out, or start from a new {system.name}{more}")


def corpus_of(source: Any, text: Text, on_event: OnEvent) -> Corpus:
    """Files by name, or texts in memory: a DataFrame's column, or a list of strings of which none names a file and one
    at least cannot, for it is empty, has blanks or is not English."""
    sentences = "split" if text.sentences == "auto" else text.sentences
    if isinstance(source, Corpus):
        return source.cut(sentences)
    if hasattr(source, "columns"):
        if text.text_column not in source.columns:
            known = ", ".join(map(repr, source.columns))
            raise UsageError(f"the DataFrame has no column {text.text_column!r}: it has {known} (say text_column=...)")
        return Corpus.of([str(value) for value in source[text.text_column]], sentences=sentences)
    if isinstance(source, list) and any(map(_is_text, source)) and not _are_names(source):
        return Corpus.of(source, sentences=sentences)
    return Corpus(
        source,
        text_column=text.text_column,
        encoding=text.encoding,
        dedup=text.dedup,
        sentences=sentences,
        on_event=on_event,
    )


def _is_text(item: object) -> bool:
    return isinstance(item, str) and (not item or bool(re.search(r"\s", item)) or not item.isascii())


def _are_names(items: list[Any]) -> bool:
    """Whether one is a file or can be nothing but the name of some, or all end as names do, blanks or not."""
    endings = [ENDING.search(item, max(0, len(item) - 20)) if isinstance(item, str) else None for item in items]
    return all(endings) or any(
        isinstance(item, Path)
        or (isinstance(item, str) and os.path.isfile(item))
        or (ending and (ending[0].startswith("*") or not re.search(r"\s", item)))
        for item, ending in zip(items, endings, strict=True)
    )


@contextmanager
def run_folder(
    out: str | Path | None, verb: str, overwrite: bool, world: World, on_event: OnEvent
) -> Iterator[tuple[Path | None, OnEvent]]:
    """The run/ folder inside `out`, if there is to be one, and an on_event that also writes run/log.jsonl; of a run
    that is refused before it starts to learn nothing is left, and what it was to overwrite stands as it did. What
    another verb has begun is gone on with by that verb alone."""
    run = None if out is None else Path(out) / "run"
    if run is None or not world.leads:
        if run:
            world.wait()  # until an old run is out of the way, or back in its place
        yield run, on_event if world.leads else ignore
        return
    _refuse_foreign(run.parent, verb, overwrite)
    new = [folder for folder in (run, *run.parents) if not folder.exists()]
    planned = learned = False
    with ExitStack() as locks:
        locks.enter_context(exclusive(run))
        shutil.rmtree(_replaced(run), ignore_errors=True)
        if _aside(run).exists():  # the run that was to replace it was killed before it learned
            _put_back(run)
            locks.enter_context(exclusive(run))
        replacing = overwrite and (len([*run.iterdir()]) > 1 or _is_model_of_ours(run.parent))  # one is the lock
        if replacing:
            run.rename(_aside(run))
            locks.enter_context(exclusive(run))
        world.wait()
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
            if isinstance(error, Interrupted) and overwrite and str(error).endswith("to go on"):
                raise Interrupted(f"{error}, without --overwrite, which starts anew") from None
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
