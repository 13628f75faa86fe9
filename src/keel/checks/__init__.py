"""Data is read before compute is spent: what it holds, what is wrong with it, and what this device can do with it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from keel.checks.check_report import Finding, Report
from keel.checks.corpus_checks import CorpusFacts, check_corpus
from keel.checks.label_checks import facts_of, findings_between, findings_of
from keel.checks.size_advice import recommend
from keel.config import replace, unknown_name
from keel.data.corpus import Corpus
from keel.data.examples import Columns, Examples, read_examples
from keel.data.parallel_text import two_files
from keel.data.tables import FASTTEXT
from keel.data.text_files import file_kind, open_text
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore
from keel.model import Model
from keel.tasks import TASKS
from keel.training.plan import Train

__all__ = ["Finding", "Report", "check"]


def check(
    files: str | Path | Iterable[str | Path],
    *,
    model: Model | str | Path | None = None,
    task: str = "",
    minutes: float = 0.0,
    device: str = "auto",
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Report:
    """Read text or labelled files (of these, first what is learned from) and say what should be known beforehand.

    To rewrite, two files of plain text that stand one after the other are read side by side.

    With a `model` lengths are counted in its tokens; with `minutes` the device is measured, and a size recommended.
    `settings` are single fields of `Columns`.
    """
    if task and task not in TASKS:
        raise unknown_name(task, TASKS, "--task")
    if minutes:
        Train(minutes=minutes)  # which refuses what no run could be given
    if isinstance(model, str | Path):
        model = Model.load(model, on_event=on_event)
    columns = replace(Columns(), **settings)
    tokenizer = model.tokenizer if model else None
    report = Report()
    labelled: list[Examples] = []
    corpora: list[CorpusFacts] = []
    named = Corpus(_apart(files) if task == "seq2seq" else files)  # held, for it keeps what came from stdin
    for group in _groups(named.files, task, columns):
        path, beside = group[0], group[1:]
        name = f"{path} and {beside[0].name}" if beside else str(path)
        heard: list[str] = []

        def listen(event: dict[str, Any], heard: list[str] = heard) -> None:
            heard.append(event["text"])

        names = (name, *map(str, group))
        facts = report.files[name] = {}
        try:
            if file_kind(path) != "parquet":
                encodings = [open_text(each, columns.encoding).encoding for each in group]
                facts["encoding"] = " and ".join(dict.fromkeys(encodings))
            if examples := _labelled((path, *beside) if beside else path, task, columns, listen):
                learns = task and not labelled and not (model and model.task)
                labelled.append(examples)
                facts |= facts_of(examples, model)
                report.findings += findings_of(examples, model, TASKS[task] if learns else None)
            else:
                text_column = columns.text_column or "text"
                corpus = Corpus(path, text_column=text_column, encoding=columns.encoding, on_event=listen)
                found = check_corpus(corpus, tokenizer)
                corpora.append(found)
                facts |= found.facts
                report.findings += found.findings
        except KeelError as error:
            report.findings.append(Finding.of("error", str(error), *names))
        notes = [Finding.of("note", sentence, *names) for sentence in dict.fromkeys(heard)]
        report.findings += [
            found if ":" not in found.where else Finding("warning", found.where, found.cause) for found in notes
        ]
    report.findings += findings_between(labelled)
    if minutes:
        sample = [document for found in corpora for document in found.sample]
        if not sample:
            raise UsageError("--minutes recommends a size for pre-training: name a file of raw text too")
        tokens = sum(found.tokens for found in corpora)
        report.forecast = recommend(
            sample, tokens, minutes=minutes, device=device, tokenizer=tokenizer, on_event=on_event
        )
    return report


def _apart(files: str | Path | Iterable[str | Path]) -> list[str | Path]:
    """Each file by itself, also of two that are named with a comma between."""
    items = [files] if isinstance(files, str | Path) else list(files)
    return [each for item in items for each in two_files(item) or (item,)]


def _groups(files: list[Path], task: str, columns: Columns) -> Iterator[tuple[Path, ...]]:
    """Files that are read as one: each alone or, to rewrite, two of plain text side by side."""
    left = list(files)
    while left:
        both = task == "seq2seq" and len(left) > 1 and all(_is_side(path, columns) for path in left[:2])
        yield tuple(left[: 1 + both])
        del left[: 1 + both]


def _is_side(path: Path, columns: Columns) -> bool:
    """Whether a file has one text in each line, and no columns."""
    return file_kind(path) == "txt" and "\t" not in _first_line(path, columns)


def _first_line(path: Path, columns: Columns) -> str:
    try:
        return next((line for _, line in open_text(path, columns.encoding) if line.strip()), "")
    except KeelError:  # said when it is read as a whole
        return ""


def _labelled(path: Path | tuple[Path, ...], task: str, columns: Columns, on_event: OnEvent) -> Examples | None:
    """The examples of a file, if it is one of examples: the task says so, or there are labels in it."""
    if task:
        examples = TASKS[task].read_examples(path, columns, on_event)
        if task == "seq2seq" and examples.kind is None:
            remedy = "name the file of the targets after it, or give a table with a column for each"
            raise KeelError(f"{path} has sources without targets: {remedy}")
        return examples
    assert isinstance(path, Path)
    if file_kind(path) == "txt":
        first = _first_line(path, columns)
        if not first.startswith(FASTTEXT) and "\t" not in first and first.count("||") != 3:
            return None
    for pair in (True, False):
        heard: list[dict[str, Any]] = []
        try:
            examples = read_examples(path, pair=pair, columns=columns, on_event=heard.append)
        except KeelError as error:
            if not pair and (columns.label_column or "label" in str(error)):
                raise
            continue
        if examples.kind:
            for event in heard:
                on_event(event)
            return examples
    return None
