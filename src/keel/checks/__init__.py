"""Checks of data before training: contents, problems, and a recommended model size for this device."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keel.checks.check_report import Finding, Report
from keel.checks.corpus_checks import CorpusFacts
from keel.checks.label_checks import findings_between, label_facts, label_findings
from keel.checks.language_checks import language_findings, language_shares, shared_tokenizer
from keel.checks.similarity_checks import near_duplicate_findings, overlap_findings
from keel.checks.size_advice import recommend
from keel.checks.task_detection import detect_task, first_lines, is_labelled_file
from keel.config import replace, unknown_name
from keel.data.corpus import Corpus
from keel.data.examples import Columns, Examples, read_examples, skip_unlabelled
from keel.data.language_mix import SMOOTHING, sources_by_language
from keel.data.memory_sources import Frame, plain_source
from keel.data.row_errors import RowErrors, collect_row_errors
from keel.data.table_sources import STDIN, named_file
from keel.data.table_writing import write_cleaned
from keel.data.text_files import file_kind, file_suffix, open_text
from keel.data.word_benchmarks import describe_benchmark
from keel.errors import KeelError, UsageError
from keel.events import Event, OnEvent, ignore, pluralize
from keel.model import Model
from keel.tasks import TASKS
from keel.training.plan import Train

__all__ = ["Finding", "Report", "check"]


def check(
    source: Any,
    *,
    model: Model | str | Path | None = None,
    task: str = "",
    minutes: float = 0.0,
    device: str = "auto",
    fix: str | Path | None = None,
    against: Any = None,
    vocabulary: int = 0,
    language_smoothing: float = SMOOTHING,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Report:
    """Check text or labelled examples.

    `source` is a file or pattern, a list of texts or (text, label) pairs, a DataFrame, or a list of Paths, the training
    file first; for seq2seq, two consecutive plain text files are read as source and target. With a `model`, lengths are
    counted in its tokens; with `minutes`, the device is measured and a model size recommended. With `fix`, a cleaned
    copy of a labelled table is written to this file: labels that differ by case, spaces or ".0" are merged, empty,
    duplicate and unlabelled rows dropped, other columns kept. With `against`, texts that share 13 consecutive words
    with this corpus are counted. `settings` are fields of `Columns`.

    Text of several languages ({"de": "multi_de.txt", ...}, or Paths such as de:multi_de.txt) gets a table of their
    shares before and after smoothing, with the tokens per word of the `model`, or of a shared vocabulary of this size.
    """
    if task and task not in TASKS:
        raise unknown_name(task, TASKS, "--task")
    if minutes:
        Train(minutes=minutes)  # validates the value
    if isinstance(model, str | Path):
        model = Model.load(model, device="cpu", on_event=on_event)
    columns = replace(Columns(), **settings)
    if vocabulary and model:
        raise UsageError("--text.vocabulary is for a new tokenizer, and --model has one: leave out one of them")
    with _without_stdin(plain_source(source), columns) as (source, spooled):  # an iterator is read twice
        report = _check(source, columns, model, task, minutes, device, fix, against, vocabulary, language_smoothing,
                        on_event)  # fmt: skip
    return report.with_name(str(spooled), STDIN) if spooled else report


def _check(
    source: Any,
    columns: Columns,
    model: Model | None,
    task: str,
    minutes: float,
    device: str,
    fix: str | Path | None,
    against: Any,
    vocabulary: int,
    smoothing: float,
    on_event: OnEvent,
) -> Report:
    tokenizer = model.tokenizer if model else None
    report = Report()
    languages = sources_by_language(source, columns.text_column or "text")
    mixed = _corpus(source, columns, on_event) if languages else None
    if vocabulary and mixed is None:
        raise UsageError("--text.vocabulary counts the tokens per word of languages: name them, as in de:FILE en:FILE")
    labelled: list[Examples] = []
    corpora: list[CorpusFacts] = []
    by_language: dict[str, list[CorpusFacts]] = {}
    named = None if mixed else _named_files(source)
    for language, group in _language_groups(mixed, languages) or _unnamed_groups(named, source, task, columns):
        path: Any = group[0]
        is_file = isinstance(path, Path)
        names = ("the table" if isinstance(source, Frame) else language or "the list",)
        if is_file:
            names = (" and ".join([str(path), *(other.name for other in group[1:])]), *map(str, group))
        name = names[0]
        facts = report.files[name] = {}
        events: list[Event] = []
        whole = group if len(group) > 1 else path
        with collect_row_errors() as invalid:
            try:
                if is_file and file_kind(path) not in ("parquet", "xlsx"):
                    encodings = [open_text(each, columns.encoding).encoding for each in group]
                    facts["encoding"] = " and ".join(dict.fromkeys(encodings))
                if benchmark := "" if task or not is_file else _vector_benchmark(path, columns):
                    facts["contents"] = benchmark
                    report.findings.append(Finding("note", name, "is for word vectors", "use keel evaluate MODEL FILE"))
                    continue
                if detected := "" if task else detect_task(path, columns):
                    facts["task"] = f"{detected} (detected)"
                if examples := _labelled(whole, task or detected, columns, invalid, events.append):
                    examples = skip_unlabelled(examples, events.append)
                    is_training_file = task and not labelled and not (model and model.task)
                    labelled.append(examples)
                    facts |= label_facts(examples, model)
                    report.findings += label_findings(examples, model, TASKS[task] if is_training_file else None)
                else:
                    corpus = _corpus(path, columns, events.append)
                    corpora.append(CorpusFacts(corpus, tokenizer, names[0]))
                    by_language.setdefault(language, []).append(corpora[-1])
                    facts |= corpora[-1].facts
                    report.findings += corpora[-1].findings()
            except KeelError as error:
                report.findings.append(Finding.of("error", str(error), *names))
        report.findings += [Finding.of("error", str(error), *names) for error in invalid.first]
        if further := invalid.count - len(invalid.first):
            what = pluralize(further, "more row is invalid", "more rows are invalid")
            report.findings.append(Finding("error", name, f"{what}, like those above", "correct or drop them"))
        for message in dict.fromkeys(event["text"] for event in events):
            found = Finding.of("note", message, *names)
            report.findings.append(replace(found, severity="warning") if found.where not in names else found)
    report.findings += [*findings_between(labelled), *near_duplicate_findings(labelled)]
    if mixed and by_language.keys() == languages.keys() and all(each.tokens for each in corpora):
        if vocabulary:
            tokenizer = shared_tokenizer(mixed, vocabulary, smoothing, on_event)
        report.languages = language_shares(by_language, smoothing, tokenizer)
        report.findings += language_findings(by_language, report.languages)
    if against is not None:
        others = _corpus(against, columns, on_event)
        tested = [(each.source, each.text_keys(), each.locations) for each in labelled]
        tested += [found.numbered_lines() for found in corpora]
        for name, texts, locations in tested:
            report.findings += overlap_findings(name, texts, locations, others)
    if fix is not None:
        kind = labelled[0].kind if len(labelled) == len(report.files) == 1 else None
        if kind is None or kind.default_task != "classify" or task not in ("", "classify", "pair"):
            raise UsageError("--fix needs one table of texts with labels: name one file, and its columns")
        corpus = mixed or named
        table, pair = corpus.files[0] if corpus and corpus.files else source, labelled[0].seconds is not None
        if report.errors:
            report.findings.append(Finding("error", str(fix), "is not written", "correct the errors above first"))
        else:
            cause = write_cleaned(table, Path(fix), pair=pair, columns=columns)
            report.findings.append(Finding("note", str(fix), cause))
    if minutes:
        sample = [document for found in corpora for document in found.sample]
        if not sample:
            raise UsageError("--minutes recommends a size for pre-training: also name a file of raw text")
        tokens = sum(found.tokens for found in corpora)
        report.forecast = recommend(sample, tokens, minutes, device, tokenizer, on_event)
    return report


def _language_groups(mixed: Corpus | None, sources: Mapping[str, Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """Each file of each language, or its texts in memory."""
    parts = {} if mixed is None else mixed.languages
    return [(language, (item,)) for language, part in parts.items() for item in part.files or [sources[language]]]


def _unnamed_groups(
    named: Corpus | None, source: Any, task: str, columns: Columns
) -> list[tuple[str, tuple[Any, ...]]]:
    """The files of a source without languages, or its examples in memory."""
    groups = [(source,)] if named is None else _groups(named.files, task, columns)
    return [("", group) for group in groups]


def _vector_benchmark(path: Path, columns: Columns) -> str:
    """What a benchmark of word vectors contains; empty for other files, and where columns are named."""
    given = any(columns.roles.values()) or columns.separator != "auto" or columns.labels != "auto"
    return "" if given or file_kind(path) not in ("txt", "csv", "tsv") else describe_benchmark(path, columns.encoding)


@contextmanager
def _without_stdin(source: Any, columns: Columns) -> Iterator[tuple[Any, Path | None]]:
    """The source with a file in place of `-`, standard input, and this file."""
    items = list(source) if isinstance(source, list | tuple) else [source]
    stdin = source if isinstance(source, str) else Path("-")  # a str in a list is a text
    number = items.index(stdin) if str(stdin) == "-" and stdin in items else -1
    if number < 0:
        yield source, None
        return
    with named_file("-", columns) as (path, _):
        yield [*items[:number], path, *items[number + 1 :]], path


def _corpus(source: Any, columns: Columns, on_event: OnEvent) -> Corpus:
    column = columns.text_column or "text"
    return Corpus(source, text_column=column, separator=columns.separator, encoding=columns.encoding, on_event=on_event)


def _named_files(source: Any) -> Corpus | None:
    """The files of a name, a pattern or Paths; None for texts, examples or a table in memory."""
    if isinstance(source, Frame | dict):
        return None
    if isinstance(source, list | tuple) and not all(isinstance(item, Path) for item in source):
        return None
    return Corpus(source)


def _groups(files: list[Path], task: str, columns: Columns) -> Iterator[tuple[Path, ...]]:
    """Files that are read as one dataset: single files, or for seq2seq pairs of plain text files."""
    remaining = list(files)
    while remaining:
        plain = [file_kind(path) == "txt" and "\t" not in _first_line(path, columns) for path in remaining[:2]]
        pair = task == "seq2seq" and plain == [True, True]
        yield tuple(remaining[: 1 + pair])
        del remaining[: 1 + pair]


def _first_line(path: Path, columns: Columns) -> str:
    return next((line for line in first_lines(path, columns) if line.strip()), "")


def _labelled(path: Any, task: str, columns: Columns, invalid: RowErrors, on_event: OnEvent) -> Examples | None:
    """The examples of a source, if there is a task or the source has labels; `invalid` gets the errors of its rows."""
    if task:
        examples = TASKS[task].read_examples(path, columns, on_event)
        if task == "seq2seq" and examples.kind is None:
            remedy = "name the file of targets after it, or give a table with a column for each"
            raise KeelError(f"{examples.source} has sources without targets: {remedy}")
        return examples
    if isinstance(path, Path) and file_kind(path) == "txt" and not is_labelled_file(path, columns):
        return None
    rows = RowErrors()
    for pair in (True, False):
        events: list[Event] = []
        try:
            with collect_row_errors() as rows:
                examples = read_examples(path, pair=pair, columns=columns, on_event=events.append)
        except KeelError as error:
            json_array = isinstance(path, Path) and file_suffix(path) == ".json"  # which is never raw text
            if not pair and (columns.label_column or "label" in str(error) or json_array):
                raise
            continue
        if examples.kind:
            invalid.extend(rows)
            for event in events:
                on_event(event)
            return examples
    if isinstance(path, Path) and file_kind(path) in ("csv", "tsv"):  # as raw text, its rows may have any length
        invalid.extend(rows)
    return None
