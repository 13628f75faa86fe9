"""Readers of multiple-choice sets: RACE, SWAG, HellaSwag, CODAH, CommonsenseQA, StoryCloze, DREAM, minimal pairs."""

import json
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from keel.data.examples import Example, Examples
from keel.data.label_kinds import ChoiceLabel
from keel.data.markup import markup_kind, read_json_document
from keel.data.memory_sources import Frame, is_records, plain_source, source_items
from keel.data.row_errors import row_error
from keel.data.table_sources import load_table, refuse_two_files
from keel.data.tables import DEFAULT_COLUMNS, Columns, Table
from keel.data.text_files import DAMAGED, open_bytes
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note

# Usual names of fields, in the order in which they are tried.
CONTEXTS = ("context", "article", "passage", "startphrase", "ctx", "text", "sent1")
QUESTIONS = ("question", "query", "prompt", "sentence")
CHOICES = ("choices", "options", "endings", "answers")
LABELS = ("label", "answerkey", "answer", "answers", "gold", "target", "correct")
COLUMN = re.compile(r"(?:(?:ending|choice|option|answer|sol|hyp)[ _]?)(\d+|[a-z])|([a-j])", re.IGNORECASE)
"""Column of one choice: ending0, option_b, A."""
PUBLISHED = {"inputsentence1", "sentence_good"}
"""Columns of StoryCloze and of minimal pairs (BLiMP)."""
HEADER = {*CONTEXTS, *QUESTIONS, *LABELS, *PUBLISHED}
"""Names by which the first row of a table is known to be its header."""
SPLITS = {"train", "dev", "valid", "val", "test"}
EXPECTED = '{"context": ..., "choices": [...], "label": 0}'


def read_choices(source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
    """Read a file, `-`, a folder or tar of RACE, a DataFrame, or a list of dicts or ((text, choices), label)."""
    if isinstance(source, Examples):
        return source
    refuse_two_files(source)
    name, read = _open(plain_source(source), columns, on_event)
    found = list(read)
    if not found:
        raise KeelError(f"{name} has no examples: give one per line, such as {EXPECTED}")
    labelled = [example.label is not None for example in found]
    if any(labelled) and not all(labelled):
        what = "the label is empty, though other examples have one"
        raise KeelError(f"{found[labelled.index(False)].location}: {what}: fill it in or drop the example")
    return Examples.of(found, ChoiceLabel() if all(labelled) else None, name)


def make_choice_example(text: str, choices: Any, label: Any, location: str, names: Sequence[str] = ()) -> Example:
    """A text with two or more choices, none of them empty, and the index of the right one, if it is labelled.

    `names` are the file's own names of the choices.
    """
    if not isinstance(choices, list | tuple) or not choices:
        raise KeelError(f"{location}: no choices: give two or more, as in {EXPECTED}")
    if len(choices) == 1:
        raise KeelError(f"{location}: only one choice, {choices[0]!r:.60}: give two or more")
    for number, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise KeelError(f"{location}: choice {number} is {choice!r:.60}, not a string: correct it")
        if not choice.strip():
            raise KeelError(f"{location}: choice {number} is empty: fill it in or drop it")
    return Example(text, None, _choice_index(label, choices, names, location), location, choices=tuple(choices))


def _choice_index(label: Any, choices: Sequence[str], names: Sequence[str], location: str) -> int | None:
    """Index of the choice that a label names: by number from 0, by A, B, C, by the file's name or by its text."""
    shown = str(label).strip()
    if label is None or shown == "" or label != label:
        return None
    if shown in names:
        return names.index(shown)
    number = -1
    if re.fullmatch(r"\d+(\.0)?", shown):
        number = int(float(shown))
    elif re.fullmatch("[A-Za-z]", shown):
        number = ord(shown.upper()) - ord("A")
    if not 0 <= number < len(choices) and shown in choices:
        number = choices.index(shown)
    if not 0 <= number < len(choices):
        last = len(choices) - 1
        what = f"the label {label!r} is none of the {len(choices)} choices"
        raise KeelError(f"{location}: {what}, which are 0 to {last} or A to {chr(65 + last)}: correct it")
    return number


def _open(source: Any, columns: Columns, on_event: OnEvent) -> tuple[str, Iterator[Example]]:
    """The name of a source in messages, and its examples."""
    if isinstance(source, str | Path) and str(source) != "-":
        path = Path(source)
        archive = next((part for part in (path, *path.parents) if part.is_file()), None)
        if path.is_dir() or (archive and (".tar" in archive.suffixes or archive.suffix == ".tgz")):
            return str(source), _from_folder(path, archive)
        if markup_kind(path, columns.encoding) == "DREAM JSON":
            return str(source), _from_dream(read_json_document(path, str(path), columns.encoding), str(path))
    if isinstance(source, str | Path | Frame | dict) or is_records(source):
        table = load_table(source, columns, on_event, pair=False)
        return table.source, _from_table(table, columns, on_event)
    return "the list", _from_items(source_items(source), columns)


def _valid(examples: Iterator[Example]) -> Iterator[Example]:
    """The examples of one row, which is skipped if it is invalid and all errors are collected."""
    try:
        yield from examples
    except KeelError as error:
        row_error(error)


def _from_items(items: list[Any], columns: Columns) -> Iterator[Example]:
    for number, item in enumerate(items):
        location = f"item {number} of the list"
        match item:
            case Mapping():
                yield from _from_record(item, location, columns)
            case [[str(text), [*choices]], label]:
                yield make_choice_example(text, choices, label, location)
            case [str(text), [*choices]]:
                yield make_choice_example(text, choices, None, location)
            case _:
                expected = f"(text, [choices]), ((text, [choices]), label) or {EXPECTED}"
                raise KeelError(f"{location} is {item!r:.60}: give {expected}")


def _from_table(table: Table, columns: Columns, on_event: OnEvent) -> Iterator[Example]:
    names, cells, locations = table.columns, table.cells, table.locations
    if not table.header and len(table) and {str(column[0]).strip().lower() for column in cells} & HEADER:
        names, cells, locations = [column[0] for column in cells], [column[1:] for column in cells], locations[1:]
    elif not table.header:
        if len(names) < 3:
            raise KeelError(f"{table.source}: not a table of texts with choices: give lines such as {EXPECTED}")
        # CODAH has no header: an optional category, the text, its choices, the index of the right one.
        first = int(max(map(len, cells[0]), default=0) <= 2)
        what = f"text in column {first + 1}, choices from column {first + 2} on, label in the last"
        note(on_event, f"{table.source}: {what}")
        choices = list(zip(*cells[first + 1 : -1], strict=True))
        names, cells, columns = ["context", "choices", "label"], [cells[first], choices, cells[-1]], DEFAULT_COLUMNS
    for row, location in zip(zip(*cells, strict=True), locations, strict=True):
        yield from _valid(_from_record(dict(zip(names, row, strict=True)), location, columns))


def _from_dream(document: Any, name: str) -> Iterator[Example]:
    """DREAM as published: a list of [turns of a dialogue, questions with their choices and answer, id]."""
    for number, item in enumerate(document if isinstance(document, list) else [document], 1):
        match item:
            case [[*turns], [*questions], *rest] if all(isinstance(each, Mapping) for each in questions):
                fields = (("questions", "question"), ("options", "choice"), ("answers", "answer"))
                record: dict[str, Any] = {ours: [each.get(theirs) for each in questions] for ours, theirs in fields}
                location = f"{name} dialogue {rest[0] if rest else number}"
                record["article"] = "\n".join(map(str, turns))
                yield from _valid(_from_record(record, location, DEFAULT_COLUMNS))
            case _:
                what = f"{name} dialogue {number} is {item!r:.60}"
                row_error(KeelError(f"{what}: give [[turns], [questions], id], as DREAM does"))


def _from_folder(path: Path, archive: Path | None) -> Iterator[Example]:
    """RACE as published: each file is a passage with its questions; the path may point into a tar file."""
    if archive is None:
        files = [(file.relative_to(path).as_posix(), file) for file in sorted(path.rglob("*.txt")) if file.is_file()]
        texts: Iterable[tuple[str, bytes]] = ((name, _bytes(file)) for name, file in files)
        _refuse_splits([name for name, _ in files], path)
    else:
        texts = _from_tar(archive, path)
    for name, text in texts:
        location = f"{path}/{name}"
        try:
            record = json.loads(text)
        except ValueError as error:
            raise KeelError(f"{location} is not JSON ({error}): give RACE passages, one per file") from None
        except RecursionError:
            raise KeelError(f"{location} is nested too deeply: is it damaged?") from None
        if not isinstance(record, dict):
            raise KeelError(f"{location} is not a JSON object: give RACE passages, one per file")
        yield from _from_record(record, location, DEFAULT_COLUMNS)


def _from_tar(archive: Path, path: Path) -> list[tuple[str, bytes]]:
    inside = PurePosixPath(path.relative_to(archive).as_posix()).parts
    try:
        with open_bytes(archive) as raw, tarfile.open(fileobj=raw, mode="r|") as tar:
            found: list[tuple[str, bytes]] = []
            for member in tar:
                parts = PurePosixPath(member.name).parts
                depths = (depth for depth in range(len(parts)) if parts[depth : depth + len(inside)] == inside)
                depth = next(depths, None)
                file = tar.extractfile(member) if member.isfile() and member.name.endswith(".txt") else None
                if file and depth is not None:
                    found.append(("/".join(parts[depth + len(inside) :]), file.read()))
    except (tarfile.TarError, *DAMAGED) as error:
        raise KeelError(f"{archive} is damaged or truncated ({error}): download it again") from None
    if inside and not found:
        raise KeelError(f"{archive} has no passages in {'/'.join(inside)}: list its files with tar -tf {archive}")
    _refuse_splits([name for name, _ in found], path)
    return sorted(found)


def _bytes(file: Path) -> bytes:
    with open_bytes(file) as opened:
        return opened.read()


def _refuse_splits(names: list[str], path: Path) -> None:
    """Refuse a folder with both training and test data."""
    splits = sorted({part for name in names for part in PurePosixPath(name).parts[:-1] if part in SPLITS})
    if len(splits) > 1:
        raise KeelError(f"{path} has {', '.join(splits)}: give one of them, such as {path}/{splits[-1]}")


def _from_record(record: Mapping[str, Any], location: str, columns: Columns) -> Iterator[Example]:
    known = {str(name).strip().lower(): value for name, value in record.items()}
    known |= _fields_of_published_set(known)
    if isinstance(known.get("questions"), list):  # RACE: several questions per passage
        article, questions = known.get("article"), known["questions"]
        options, answers = known.get("options") or [], known.get("answers") or [None] * len(questions)
        if not isinstance(options, list) or not isinstance(answers, list | str):  # a string: one character each
            raise KeelError(f"{location}: options or answers are not lists, though the questions are: correct it")
        if not len(questions) == len(options) == len(answers):
            counts = f"{len(questions)} questions, {len(options)} lists of options and {len(answers)} answers"
            raise KeelError(f"{location}: {counts}: give as many of each")
        for number, (question, choices, label) in enumerate(zip(questions, options, answers, strict=True), 1):
            if not (text := _joined(article, question)):
                raise KeelError(f"{location} question {number}: no text: fill in the article or the question")
            yield make_choice_example(text, choices, label, f"{location} question {number}")
        return
    if isinstance(known.get("question"), Mapping):  # CommonsenseQA and ARC as published
        known |= {"question": known["question"].get("stem", ""), "choices": known["question"].get("choices")}

    def cell(role: str, usual_names: Sequence[str], types: Any = str) -> Any:
        """The cell of the column that the user named, else the first with a usual name."""
        if named := columns.roles[role]:
            if named not in record:
                have = ", ".join(map(repr, record))
                raise KeelError(f"{location}: no column {named!r}: it has {have} (choose with --{role}-column)")
            return record[named]
        cells = [value for name in usual_names if isinstance(value := known.get(name), types)]
        return next((value for value in cells if value or role == "label"), cells[0] if cells else None)

    context = cell("text", CONTEXTS)
    question = cell("second", QUESTIONS) if columns.second_column or not columns.text_column else ""
    text = _joined(context, question)
    if "sent2" in known and not columns.text_column and "startphrase" not in known:
        text = _joined(context, known["sent2"])
    given = record[columns.text_column] if columns.text_column else context
    if not text and not isinstance(given, str):  # a context may be empty, as that of minimal pairs
        have = ", ".join(map(repr, record))
        raise KeelError(f"{location}: no text: it has {have}; name its column with --text-column")
    if isinstance(known.get("wrong"), list) and isinstance(right := known.get("correct"), str):
        choices = [*known["wrong"]]
        index = zlib.crc32((text or right).encode("utf-8", "replace")) % (len(choices) + 1)  # first, it would win ties
        choices.insert(index, right)
        yield make_choice_example(text, choices, index, location)
        return
    choices = next((known[name] for name in CHOICES if isinstance(known.get(name), list | Mapping | tuple)), None)
    names: Sequence[str] = ()
    if isinstance(choices, Mapping):
        names, choices = [str(name) for name in choices.get("label") or ()], choices.get("text")
    elif choices and all(isinstance(each, Mapping) for each in choices):
        names, choices = [str(each.get("label")) for each in choices], [each.get("text") for each in choices]
    elif choices is None:
        cells = [name for name in known if COLUMN.fullmatch(name) and name not in CHOICES]
        # A table has as many columns as its longest example has choices.
        choices = [known[name] for name in cells if known[name] not in (None, "")] or None
        empty = [known[name] in (None, "") for name in cells]
        if choices and any(empty[: len(choices)]):
            raise KeelError(f"{location}: choice {empty.index(True)} is empty: fill it in or drop it")
    yield make_choice_example(text, choices, cell("label", LABELS, str | int | float), location, names)


def _fields_of_published_set(known: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that other sets name otherwise: minimal pairs (BLiMP), StoryCloze."""
    if "sentence_good" in known and "sentence_bad" in known:
        return {"context": "", "correct": known["sentence_good"], "wrong": [known["sentence_bad"]]}
    if "inputsentence1" in known:
        sentences = [str(known.get(f"inputsentence{number}") or "").strip() for number in range(1, 5)]
        endings = [known.get(f"randomfifthsentencequiz{number}") for number in (1, 2)]
        choices = {"label": ["1", "2"], "text": endings}
        return {
            "context": " ".join(filter(None, sentences)),
            "choices": choices,
            "label": known.get("answerrightending"),
        }
    return {}


def _joined(context: Any, question: Any) -> str:
    """Context and question as one text; either may be empty."""
    return f"{str(context or '').strip()} {str(question or '').strip()}".strip()
