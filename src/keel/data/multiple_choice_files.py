"""Texts with choices, in whatever form they come: RACE's folders, SWAG's and CODAH's tables, CommonsenseQA's lines."""

import json
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from keel.data.examples import DEFAULT_COLUMNS, Columns, Example, ExampleColumns, Examples
from keel.data.tables import refuse_two_files, spool_stdin
from keel.data.text_files import DAMAGED, file_kind, open_bytes, open_text, read_rows, read_table
from keel.errors import KeelError
from keel.events import OnEvent, counted, ignore, note

# Other people's names for the same things, in the order in which they are looked for.
CONTEXTS = ("context", "article", "passage", "startphrase", "ctx", "text", "sent1")
QUESTIONS = ("question", "query", "prompt", "sentence")
CHOICES = ("choices", "options", "endings", "answers")
LABELS = ("label", "answerkey", "answer", "answers", "gold", "target", "correct")
COLUMN = re.compile(r"(?:(?:ending|choice|option|answer|sol|hyp)[ _]?)(\d+|[a-z])|([a-j])", re.IGNORECASE)
"""A column that holds one choice: ending0, option_b, A."""
SPLITS = {"train", "dev", "valid", "val", "test"}
FORM = '{"context": ..., "choices": [...], "label": 0}'


class _Found(NamedTuple):
    """One text with its choices, as it stands in a file."""

    text: str
    choices: Any
    label: Any
    where: str
    names: Sequence[str] = ()
    """What the file itself calls the choices."""


def read_choices(source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
    """Read a file, `-`, a folder or tar of RACE's, a DataFrame, or a list of dicts or ((text, choices), label)."""
    if isinstance(source, Examples):
        return source
    refuse_two_files(source)
    name = "standard input" if source == "-" else str(source) if isinstance(source, str | Path) else "the list"
    found = [example for record in _found(source, columns, on_event) for example in [_example(record)]]
    if not found:
        raise KeelError(f"{name} holds no examples: give one in every line, such as {FORM}")
    labelled = [example.label is not None for example in found]
    if any(labelled) and not all(labelled):
        place = found[labelled.index(False)].location
        raise KeelError(f"{place}: the label is empty, though other examples have one: fill it in or drop the example")
    return Examples(ExampleColumns.from_examples(found), "choice" if all(labelled) else None, name)


def make_choice_example(text: str, choices: Any, label: Any, where: str, names: Sequence[str] = ()) -> Example:
    """A text with its choices, of which there must be two or more, none of them empty, and the number of the right one;
    None where there is none."""
    return _example(_Found(text, choices, label, where, names))


def _example(found: _Found) -> Example:
    text, choices, label, where, names = found
    if not isinstance(choices, list | tuple) or not choices:
        raise KeelError(f"{where}: there are no choices: give two or more, as in {FORM}")
    if len(choices) == 1:
        raise KeelError(f"{where}: there is one choice only, {choices[0]!r:.60}: give two or more")
    for number, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise KeelError(f"{where}: choice {number} is {choice!r:.60}, not a string: mend it")
        if not choice.strip():
            raise KeelError(f"{where}: choice {number} is empty: fill it in or drop it")
    return Example(text, None, _number(label, choices, names, where), where, choices=tuple(choices))


def _number(label: Any, choices: Sequence[str], names: Sequence[str], where: str) -> int | None:
    """Which choice a label names: by number from 0, by letter, by the file's own name for it or by its text."""
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
        what = f"the label {label!r} names none of the {len(choices)} choices"
        raise KeelError(f"{where}: {what}, which are 0 to {last} or A to {chr(65 + last)}: correct it")
    return number


def _found(source: Any, columns: Columns, on_event: OnEvent) -> Iterator[_Found]:
    if isinstance(source, str) and source == "-":
        with tempfile.TemporaryDirectory() as folder:
            yield from _of_file(spool_stdin(Path(folder)), "standard input", columns, on_event)
    elif isinstance(source, str | Path):
        path = Path(source)
        archive = next((part for part in (path, *path.parents) if part.is_file()), None)
        if path.is_dir() or (archive and ".tar" in archive.suffixes) or (archive and archive.suffix == ".tgz"):
            yield from _of_folder(path, archive)
        else:
            yield from _of_file(path, str(source), columns, on_event)
    elif hasattr(source, "columns"):  # a DataFrame of pandas, polars, ...
        cells = [list(source[column]) for column in source.columns]
        for number, row in enumerate(zip(*cells, strict=True)):
            yield from _of_record(dict(zip(map(str, source.columns), row, strict=True)), f"row {number}", columns)
    else:
        for number, item in enumerate(source):
            where = f"item {number} of the list"
            match item:
                case Mapping():
                    yield from _of_record(item, where, columns)
                case [[str(text), [*choices]], label]:
                    yield _Found(text, choices, label, where)
                case [str(text), [*choices]]:
                    yield _Found(text, choices, None, where)
                case _:
                    form = f"(text, [choices]), ((text, [choices]), label) or {FORM}"
                    raise KeelError(f"{where} is {item!r:.60}: give {form}")


def _of_file(path: Path, name: str, columns: Columns, on_event: OnEvent) -> Iterator[_Found]:
    kind = file_kind(path)
    if kind in ("jsonl", "parquet"):
        for number, record in read_table(path, columns.encoding, on_event):
            yield from _of_record(record, f"{name}:{number}", columns)
        return
    rows = (
        list(read_rows(path, columns.encoding, on_event))
        if kind != "txt"
        else [
            (number, line.split("\t")) for number, line in open_text(path, columns.encoding, on_event) if line.strip()
        ]
    )
    if not rows:
        return
    header = rows[0][1]
    if {cell.strip().lower() for cell in header} & {*CONTEXTS, *QUESTIONS, *LABELS} or columns.label_column in header:
        for number, row in rows[1:]:
            yield from _of_record(dict(zip(header, row, strict=False)), f"{name}:{number}", columns)
        return
    if len(header) < 3:
        raise KeelError(f"{name}: this is no table of texts with choices: give lines such as {FORM}")
    # Without a header as CODAH has it: the text, its choices, the number of the right one, a mark before them or not.
    first = int(max(len(row[0]) for _, row in rows) <= 2)
    note(on_event, f"{name}: text in column {first + 1}, choices from column {first + 2} on, label in the last")
    for number, row in rows:
        if len(row) != len(header):
            what = f"this row has {counted(len(row), 'column')}, the first has {len(header)}"
            raise KeelError(f"{name}:{number}: {what}: look for a stray separator")
        yield _Found(row[first], row[first + 1 : -1], row[-1], f"{name}:{number}")


def _of_folder(path: Path, archive: Path | None) -> Iterator[_Found]:
    """RACE as published: each file a passage with its questions; a path may go on into a tar."""
    if archive is None:
        files = [(file.relative_to(path).as_posix(), file) for file in sorted(path.rglob("*.txt")) if file.is_file()]
        texts: Iterable[tuple[str, bytes]] = ((name, _bytes(file)) for name, file in files)
        _refuse_splits([name for name, _ in files], path)
    else:
        texts = _of_tar(archive, path)
    for name, text in texts:
        where = f"{path}/{name}"
        try:
            record = json.loads(text)
        except ValueError as error:
            raise KeelError(
                f"{where} is not JSON ({error}): in a folder each file is a passage as RACE has it"
            ) from None
        if not isinstance(record, dict):
            raise KeelError(f"{where} is not a JSON object: in a folder each file is a passage as RACE has it")
        yield from _of_record(record, where, DEFAULT_COLUMNS)


def _of_tar(archive: Path, path: Path) -> list[tuple[str, bytes]]:
    inside = PurePosixPath(path.relative_to(archive).as_posix()).parts
    try:
        with open_bytes(archive) as raw, tarfile.open(fileobj=raw, mode="r|") as tar:
            found: list[tuple[str, bytes]] = []
            for member in tar:
                parts = PurePosixPath(member.name).parts
                places = (place for place in range(len(parts)) if parts[place : place + len(inside)] == inside)
                place = next(places, None)
                if (
                    member.isfile()
                    and member.name.endswith(".txt")
                    and place is not None
                    and (file := tar.extractfile(member))
                ):
                    found.append(("/".join(parts[place + len(inside) :]), file.read()))
    except (tarfile.TarError, *DAMAGED) as error:
        raise KeelError(f"{archive} is damaged or cut short ({error}): fetch it again") from None
    if inside and not found:
        raise KeelError(f"{archive} has no {'/'.join(inside)} with passages in it: look with tar -tf {archive}")
    _refuse_splits([name for name, _ in found], path)
    return sorted(found)


def _bytes(file: Path) -> bytes:
    with open_bytes(file) as opened:
        return opened.read()


def _refuse_splits(names: list[str], path: Path) -> None:
    """What is learned from and what is tested on are not read as one."""
    splits = sorted({part for name in names for part in PurePosixPath(name).parts[:-1] if part in SPLITS})
    if len(splits) > 1:
        raise KeelError(f"{path} holds {', '.join(splits)}: name one of them, such as {path}/{splits[-1]}")


def _of_record(record: Mapping[str, Any], where: str, columns: Columns) -> Iterator[_Found]:
    known = {str(name).strip().lower(): value for name, value in record.items()}
    if isinstance(known.get("questions"), list):  # RACE: one passage, several questions
        article, questions = known.get("article"), known["questions"]
        options, answers = known.get("options") or [], known.get("answers") or [None] * len(questions)
        if not isinstance(options, list) or not isinstance(answers, list | str):  # answers may be letters in a row
            raise KeelError(f"{where}: options or answers are no list, though the questions are: mend it")
        if not len(questions) == len(options) == len(answers):
            counts = f"{len(questions)} questions, {len(options)} lists of options and {len(answers)} answers"
            raise KeelError(f"{where}: there are {counts}: give one of each")
        for number, (question, choices, label) in enumerate(zip(questions, options, answers, strict=True), 1):
            if not (text := _joined(article, question)):
                raise KeelError(f"{where} question {number}: there is no text: fill in the article or the question")
            yield _Found(text, choices, label, f"{where} question {number}")
        return
    if isinstance(known.get("question"), Mapping):  # CommonsenseQA and ARC as published
        known |= {"question": known["question"].get("stem", ""), "choices": known["question"].get("choices")}
    context, question = _cell(record, known, columns.text_column, CONTEXTS, where), ""
    if columns.second_column or not columns.text_column:
        question = _cell(record, known, columns.second_column, QUESTIONS, where)
    text = _joined(context, question)
    if "sent2" in known and not columns.text_column and "startphrase" not in known:
        text = _joined(context, known["sent2"])
    if not text:
        have = ", ".join(map(repr, record))
        raise KeelError(f"{where}: there is no text: it has {have}; name its column with --text-column")
    if isinstance(known.get("wrong"), list) and isinstance(right := known.get("correct"), str):
        choices = [*known["wrong"]]
        place = zlib.crc32(text.encode("utf-8", "replace")) % (len(choices) + 1)  # always first, it would win every tie
        choices.insert(place, right)
        yield _Found(text, choices, place, where)
        return
    choices = next((known[name] for name in CHOICES if isinstance(known.get(name), list | Mapping | tuple)), None)
    names: Sequence[str] = ()
    if isinstance(choices, Mapping):
        names, choices = [str(name) for name in choices.get("label") or ()], choices.get("text")
    elif choices and all(isinstance(each, Mapping) for each in choices):
        names, choices = [str(each.get("label")) for each in choices], [each.get("text") for each in choices]
    elif choices is None:
        cells = [name for name in known if COLUMN.fullmatch(name)]
        # A table has as many columns as its longest row has choices.
        choices = [known[name] for name in cells if known[name] not in (None, "")] or None
        empty = [known[name] in (None, "") for name in cells]
        if choices and any(empty[: len(choices)]):
            raise KeelError(f"{where}: choice {empty.index(True)} is empty: fill it in or drop it")
    label = record.get(columns.label_column) if columns.label_column else None
    if columns.label_column and columns.label_column not in record:
        have = ", ".join(map(repr, record))
        raise KeelError(f"{where}: there is no {columns.label_column!r}: it has {have} (say which with --label-column)")
    if not columns.label_column:
        label = next((known[name] for name in LABELS if isinstance(known.get(name), str | int | float)), None)
    yield _Found(text, choices, label, where, names)


def _cell(record: Mapping[str, Any], known: Mapping[str, Any], named: str, names: tuple[str, ...], where: str) -> str:
    """The text of the column that was named, else of the first whose name is known."""
    if named:
        if named not in record:
            have = ", ".join(map(repr, record))
            raise KeelError(f"{where}: there is no column {named!r}: it has {have} (say which with --text-column)")
        return str(record[named] or "")
    return next((known[name] for name in names if isinstance(known.get(name), str) and known[name]), "")


def _joined(context: Any, question: Any) -> str:
    """Both as one text; a cell may hold nothing."""
    return f"{str(context or '').strip()} {str(question or '').strip()}".strip()
