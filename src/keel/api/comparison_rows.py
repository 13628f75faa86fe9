"""Rows and columns of a comparison: what was given, resolved and checked before any compute is spent."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import keel
from keel.api.finetuning_setup import LabelledData
from keel.api.settings import Source
from keel.api.starting_point import unknown_start
from keel.config import to_dict
from keel.data.corpus import Corpus
from keel.data.examples import Columns, Examples, Labels
from keel.data.label_kinds import TextTarget
from keel.errors import UsageError
from keel.events import OnEvent, note
from keel.formats.bundled_models import locate
from keel.formats.registry import find_format
from keel.metrics.comparison_results import Column
from keel.model import Model
from keel.systems import SYSTEMS
from keel.systems.system import CountBased, System, supports
from keel.tasks import TASKS, Task
from keel.training.distributed import pick_device

RowSource = str | Path | System | Model
"""A system or its name, a model, its folder or the name of a bundled one, or a file of word vectors."""
Equal = Literal["minutes", "tokens"]
LONG_RUN = 100_000
"""Steps of a published pre-training for which a budget of minutes needs other settings."""
SHORT_RUN: Mapping[str, Any] = {"batch": 32, "lr": 1e-3, "warmup": 0.1}
"""Pre-training settings of such a system within a budget: many small steps."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The length of each row's pre-training."""

    equal: Equal
    minutes: float
    epochs: float

    @property
    def description(self) -> str:
        if self.equal == "minutes":
            length = "1 minute" if self.minutes == 1 else f"{self.minutes:g} minutes"
            return f"{length} of pre-training for each system"
        return f"pre-training on the same text for each system ({self.epochs:g} times the corpus)"

    def settings(self, system: System) -> dict[str, Any]:
        """Keywords of `pretrain`."""
        if isinstance(system, CountBased):  # reads the text exactly once
            return {}
        short = SHORT_RUN if system.pretraining_defaults.steps >= LONG_RUN else {}
        length = {"minutes": self.minutes} if self.equal == "minutes" else {"epochs": self.epochs}
        return {**short, **length}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One system or model, with a hash of its weights or settings."""

    name: str
    start: System | str
    """The system, or the path of the model."""
    pretrained: bool
    """Whether the system is pre-trained on the corpus first."""
    key: str

    @property
    def size_on_disk(self) -> int:
        """Bytes of a given model."""
        if isinstance(self.start, System):
            return 0
        path = Path(self.start)
        return sum(file.stat().st_size for file in _files(path))


def resolve_rows(given: Sequence[RowSource], task: str, corpus: bool, models: Path, on_event: OnEvent) -> list[Row]:
    """The rows that were given; models in memory are saved to `models`."""
    if not given:
        raise UsageError("nothing to compare: give systems, model folders or word vector files")
    rows = [_row(each, task, corpus, models, on_event) for each in given]
    for row in rows:
        reason = None
        if isinstance(row.start, System):
            reason = row.start.unsupported_reason(task, trained=row.pretrained)
        if reason:
            raise UsageError(reason)
    counts = Counter(row.key for row in rows)
    if twice := [row.name for row in rows if counts[row.key] > 1]:
        raise UsageError(f"{twice[0]} is given twice: give it once")
    for longer in (_described, lambda row, _: f"{row.name} ({row.key[:4]})"):
        alike = {row.name: [other for other in rows if other.name == row.name] for row in rows}
        rows = [replace(row, name=longer(row, alike[row.name])) if len(alike[row.name]) > 1 else row for row in rows]
    return rows


def _described(row: Row, alike: Sequence[Row]) -> str:
    """The name of one of several rows of the same name: with the parent folder, or the settings that differ."""
    if isinstance(row.start, System):
        settings = [to_dict(other.start) for other in alike if isinstance(other.start, System)]
        differing = [name for name in settings[0] if any(each[name] != settings[0][name] for each in settings)]
        own = to_dict(row.start)
        return f"{row.name} ({', '.join(f'{name} {own[name]}' for name in differing)})" if differing else row.name
    path = Path(row.start)
    return f"{path.parent.name}/{row.name}" if path.name == row.name else row.name


def _row(given: RowSource, task: str, corpus: bool, models: Path, on_event: OnEvent) -> Row:
    if isinstance(given, Model):
        key = given.fingerprint()
        folder = models / f"{given.card.title or given.system.name}-{key[:8]}"
        if not folder.exists():
            given.save(folder)
        return Row(name=given.card.title or given.system.name, start=str(folder), pretrained=False, key=key)
    if isinstance(given, System):
        return _system_row(given.name, given, corpus)
    name, _, size = str(given).partition(":")
    if isinstance(given, str) and name in SYSTEMS:
        kind = SYSTEMS[name]
        system = kind.sized(size) if size else kind()
        on_cpu = pick_device("auto").type == "cpu"
        smallest = next(iter(kind.sizes), "")
        # The only size of seq2seq, the published one, is larger than its default.
        if not size and smallest and on_cpu and _width(kind.sized(smallest)) <= _width(system):
            size, system = smallest, kind.sized(smallest)
            note(on_event, f"{name} has its smallest size on a CPU, {name}:{size}; name another one like this")
        if not size and learns_from_labels(system):
            system = system.from_scratch()
        return _system_row(f"{name}:{size}" if size else name, system, corpus)
    path = locate(given)
    if not path.exists():
        raise unknown_start(given, "model folder or word vector file")
    if find_format(path) is None:
        Model.load(path, device="cpu")  # says what is wrong
    return Row(name=path.resolve().name, start=str(path.resolve()), pretrained=False, key=_content_hash(path))


def _width(system: System) -> int:
    return getattr(system, "width", 0)


def _system_row(name: str, system: System, corpus: bool) -> Row:
    needs = not learns_from_labels(system)
    if needs and not corpus:
        raise UsageError(f"{name} is pre-trained before it is compared: give raw text with --corpus, or a model folder")
    return Row(name=name, start=system, pretrained=needs, key=content_key(system.name, to_dict(system)))


def learns_from_labels(system: System) -> bool:
    """Whether a system is trained on labelled examples alone: it has no pre-training, or a recipe without it."""
    return not supports(system, "pretrain") or type(system).from_scratch is not System.from_scratch


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """A pair of training and test examples, and perhaps a second test set."""

    name: str
    train: Examples
    labels: Labels
    tests: dict[str, Examples]
    """By part: test and transfer."""
    key: str

    def columns(self, number: int) -> list[Column]:
        """A column for each test set."""
        names = {"test": self.name, "transfer": f"{self.name} -> {_source_name(self.tests.get('transfer'))}"}
        return [
            Column(name=names[part], task=number, part=part, examples=examples, trained_on=len(self.train))
            for part, examples in self.tests.items()
        ]

    def sizes(self, wanted: Sequence[int | Literal["all"]]) -> list[int]:
        """Numbers of training examples; all of them is the last."""
        every = len(self.train)
        if too_many := [size for size in wanted if size != "all" and size > every]:
            raise UsageError(f"{self.train.source} has {every:,} examples, fewer than --train-sizes {too_many[0]}")
        return sorted({every if size == "all" else size for size in wanted} or {every})


def read_tasks(
    task: str,
    train: Sequence[Source],
    test: Sequence[Source],
    transfer: Sequence[Source],
    columns: Columns,
    on_event: OnEvent,
) -> list[TaskData]:
    """Read and check all labelled files."""
    if len(train) != len(test) or (transfer and len(transfer) != len(test)):
        counts = f"{len(train)} --train, {len(test)} --test" + (f", {len(transfer)} --transfer" if transfer else "")
        raise UsageError(f"every --train needs its --test (and --transfer, if any): {counts} were given")
    kind = TASKS[task]
    found: list[TaskData] = []
    for number, (source, tested) in enumerate(zip(train, test, strict=True)):
        data = LabelledData.read(kind, columns, source, None, tested, seed=0, on_event=on_event)
        assert data.test is not None
        if isinstance(data.labels.kind, TextTarget):
            raise UsageError("keel compare has no test for generated texts yet: use keel evaluate")
        tests = {"test": data.test}
        if transfer:
            tests["transfer"] = kind.read_labelled(transfer[number], columns, on_event)
            kind.check_scorable(tests["transfer"], data.labels)
        for examples in tests.values():
            _check_labels(kind, examples, data.train, data.labels)
        key = content_key(data.train.fingerprint(), *(each.fingerprint() for each in tests.values()))
        found.append(
            TaskData(name=_source_name(data.test, number), train=data.train, labels=data.labels, tests=tests, key=key)
        )
    names = Counter(each.name for each in found)
    return [
        each if names[each.name] == 1 else replace(each, name=f"{each.name} {number + 1}")
        for number, each in enumerate(found)
    ]


def _check_labels(kind: type[Task], examples: Examples, train: Examples, labels: Labels) -> None:
    """Refuse a test set with classes that no system can predict."""
    if len(examples) < 2:
        raise UsageError(f"{examples.source} has one example: a comparison needs more")
    unseen = labels.unseen_in(examples)
    if kind.labels_texts and unseen:
        shown = ", ".join(map(repr, unseen[:3]))
        raise UsageError(
            f"{examples.source} has labels that {train.source} lacks ({shown}), so that no system can predict them: "
            "drop these examples, or train with them"
        )


def read_corpus(source: Source) -> Corpus:
    """The corpus, which must have text."""
    if str(source) == "-":
        raise UsageError("--corpus is read by several processes: give a file instead of -")
    corpus = source if isinstance(source, Corpus) else Corpus(source)  # each system splits sentences in its own way
    if not any(block.text.strip() for block in corpus.blocks()):
        raise UsageError(f"{corpus} contains no text: give another --corpus")
    return corpus


def content_key(*parts: Any) -> str:
    """Hash of plain data and Keel's version."""
    text = json.dumps([keel.__version__, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _content_hash(path: Path) -> str:
    """Hash of a model's files."""
    digest = hashlib.blake2b(digest_size=16)
    for file in _files(path):
        digest.update(str(file.relative_to(path) if path.is_dir() else "").encode())
        with open(file, "rb") as content:
            while block := content.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    """The files of a model, without those of its run."""
    if path.is_file():
        return [path]
    files = (file for file in path.rglob("*") if file.is_file())
    return sorted(file for file in files if "run" not in file.relative_to(path).parts[:1] and file.name[0] != ".")


def _source_name(examples: Examples | None, number: int = 0) -> str:
    """The name of a test set: its file without suffixes, with the folder if the file has a usual name."""
    if examples is None:
        return ""
    path = Path(examples.source)
    if not path.is_file():
        return f"test {number + 1}"
    stem = path.name.split(".")[0]
    return f"{path.resolve().parent.name}/{stem}" if stem in ("dev", "test", "val", "valid", "validation") else stem
