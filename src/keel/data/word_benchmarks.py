"""Published benchmarks of word vectors: files of scored word pairs and of analogy questions, detected and read."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from keel.data.column_names import TEXTS
from keel.data.examples import Example, Examples
from keel.data.label_kinds import Regression
from keel.data.text_files import open_text
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note, pluralize
from keel.localization import gettext_noop

LONG_LINE = 10_000
"""Characters that no line of a benchmark has."""
SEPARATORS: dict[str, Callable[[str], list[str]]] = {
    "tabs": lambda line: line.split("\t"),
    "semicolons": lambda line: line.split(";"),
    "commas": lambda line: line.split(","),
    "spaces": str.split,
}
COMMENTS = ("//", "#")
WORD_CLASS = re.compile("-[njv]$")  # MEN's lemmas: sun-n
COLUMN_NAME = re.compile("(word|term|w|[a-d])[ _]?[0-9a-d]?|query|target|answer")
"""Names of the columns of words in a table of analogies."""


def published_form(path: str | Path, encoding: str = "auto") -> Literal["pairs", "questions", ""]:
    """Format of a file by its first lines: scored word pairs, analogy questions, or neither."""
    start = islice(open_text(path, encoding).line_chunks(LONG_LINE), 200)
    lines = [line for _, line in start if line.strip() and not line.startswith(COMMENTS)]
    if any(line.startswith(":") for line in lines):
        return "questions"
    if lines and all(len(line.split()) == 4 and not any(map(_is_number, line.split())) for line in lines):
        return "questions"
    if _question_columns(lines):
        return "questions"
    tables = {name: [_cells(line, name) for line in lines] for name in SEPARATORS}
    # Prose has spaces too: there a line must be exactly two words and a score.
    tables["spaces"] = [cells if len(cells) == 3 else [] for cells in tables["spaces"]]
    return "pairs" if any(2 * sum(map(_is_pair, rows)) > len(rows) for rows in tables.values()) else ""


def _is_pair(cells: list[str]) -> bool:
    """Whether a row could hold two words and a score."""
    numbers = sum(map(_is_number, cells))
    return numbers > 0 and sum(len(cell.split()) == 1 for cell in cells) - numbers >= 2


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip().strip('"') for cell in SEPARATORS[separator](line)]


class _QuestionColumns(NamedTuple):
    """Where a table has the sections and the four words of its questions."""

    separator: str
    words: list[int]
    section: int | None
    header: bool


def _question_columns(lines: list[str]) -> _QuestionColumns | None:
    """The columns of a table of analogies, which may also count its rows; None for other files."""
    for separator in ("tabs", "semicolons", "commas"):
        rows = [_cells(line, separator) for line in lines]
        columns = list(zip(*rows, strict=False))
        if len(columns) < 4 or len({len(row) for row in rows}) > 1:
            continue
        body = [column[len(rows) > 1 :] for column in columns]
        numeric = [all(map(_is_number, column)) for column in body]
        words = [number for number in range(len(columns)) if not numeric[number]]
        scored = any(not _counts_rows(columns[number]) for number in range(len(columns)) if numeric[number])
        if scored or len(words) < 4 or any(len(cell.split()) != 1 for word in words[-4:] for cell in body[word]):
            continue
        first = [rows[0][word].lower() for word in words[-4:]]
        counted = any(is_number and not _is_number(rows[0][column]) for column, is_number in enumerate(numeric))
        header = counted or all(map(COLUMN_NAME.fullmatch, first))
        return _QuestionColumns(separator, words[-4:], words[-5] if len(words) > 4 else None, header)
    return None


def _counts_rows(cells: Sequence[str]) -> bool:
    """Whether a column of numbers, perhaps with a header, only counts the rows."""
    numbers = list(map(float, cells if _is_number(cells[0]) else cells[1:]))
    return len(numbers) > 1 and all(number == numbers[0] + index for index, number in enumerate(numbers))


def read_pairs(path: str | Path, on_event: OnEvent = ignore, encoding: str = "auto") -> tuple[str, Examples]:
    """Detect the columns of words and scores by their content, and read pairs of words and their ratings."""
    text = open_text(path, encoding, on_event)
    lines = [(number, line) for number, line in text if line.strip() and line[0] != "#"]
    if not lines:
        raise KeelError(f"{path} is empty: give a file with two words and a score in every line")
    fitting = [
        name for name, cut in SEPARATORS.items() if 2 * sum(len(cut(line)) > 2 for _, line in lines) >= len(lines)
    ]
    if not fitting:
        raise KeelError(f"{path}:{lines[0][0]}: this line is not two words and a score: separate them with tabs")
    separator = fitting[0]
    rows = [_cells(line, separator) for _, line in lines]
    width = Counter(map(len, rows)).most_common(1)[0][0]
    for (number, _), row in zip(lines, rows, strict=True):
        if len(row) != width:
            what = f"this line has {pluralize(len(row), 'column')}, the others have {width}"
            raise KeelError(f"{path}:{number}: {what}: fix or drop it")
    numeric = [2 * sum(_is_number(row[column]) for row in rows) >= len(rows) for column in range(width)]
    # Columns such as part of speech have fewer distinct values than the words; contexts (SCWS) are longer.
    single = [2 * sum(" " not in row[column] for row in rows) >= len(rows) for column in range(width)]
    free = [column for column in range(width) if not numeric[column] and single[column]]
    variety = {column: len({row[column] for row in rows}) for column in free}
    if len(variety) < 2 or not any(numeric):
        raise KeelError(
            f"{path}: two columns of words and one of numbers are needed, separated by {gettext_noop(separator)}"
        )
    first, second = sorted(sorted(variety, key=lambda column: -variety[column])[:2])
    value = next(column for column in [*range(second, width), *range(second)] if numeric[column])
    header = not _is_number(rows[0][value])
    ratings = [row[value] for row in rows[header:]]
    if value < second and all(map(_is_number, ratings)) and _counts_rows(ratings):
        what = f"column {value + 1} only counts the rows, and no other has numbers"
        raise KeelError(f"{path}: {what}: add a column of scores (analogies: give four words in each row)")
    pairs: list[Example] = []
    for (number, _), row in [*zip(lines, rows, strict=True)][header:]:
        if not _is_number(row[value]):
            raise KeelError(f"{path}:{number}: the score {row[value]!r:.60} is not a number: fix or drop this line")
        pairs.append(Example(row[first], row[second], float(row[value]), f"{path}:{number}"))
    if all(WORD_CLASS.search(word) for pair in pairs for word in (pair.text, pair.second or "")):
        pairs = [Example(pair.text[:-2], (pair.second or "")[:-2], pair.label, pair.location) for pair in pairs]
    names = [f"{column + 1} ({rows[0][column]!r})" if header else str(column + 1) for column in (first, second, value)]
    first_name, second_name, score = names
    columns = (
        f"words in columns {first_name} and {second_name}, score in column {score}, "
        f"separated by {gettext_noop(separator)}"
    )
    note(on_event, f"{path}: {columns}")
    return columns, Examples.of(pairs, Regression(), str(path))


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def read_questions(path: str | Path, encoding: str, on_event: OnEvent) -> Iterator[tuple[str, list[str]]]:
    """Section and four words of each question."""
    section, empty = "questions", True
    lines = [(number, line) for number, line in open_text(path, encoding, on_event) if line.strip()]
    lines = [(number, line) for number, line in lines if not line.startswith(COMMENTS)]
    if table := _question_columns([line for _, line in lines]):
        for _, line in lines[table.header :]:
            cells = _cells(line, table.separator)
            yield section if table.section is None else cells[table.section], [cells[word] for word in table.words]
        return
    for number, line in lines:
        words = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
            continue
        if len(words) != 4:
            raise KeelError(f"{path}:{number}: this line has {len(words)} words, a question has 4: fix or drop it")
        empty = False
        yield section, words
    if empty:
        raise KeelError(f"{path} contains no questions: give lines of four words under lines such as ': capitals'")


def describe_benchmark(path: Path, encoding: str) -> str:
    """What a benchmark of word vectors contains; empty for other files.

    Stricter than `published_form`, as tagged words and prose may look like one: every line must be read, without empty
    lines between them, and analogies must have sections or columns.
    """
    try:
        form = published_form(path, encoding)
        lines = [line for _, line in islice(open_text(path, encoding).line_chunks(LONG_LINE), 200)] if form else []
        rows = [line.rstrip("\r\n") for line in lines if not line.startswith(COMMENTS)]
        while rows and not rows[0].strip():
            del rows[0]
        while rows and not rows[-1].strip():
            del rows[-1]
        if not rows or not all(map(str.strip, rows)):
            return ""
        if form == "pairs":
            header = {cell.lower() for separator in SEPARATORS for cell in _cells(rows[0], separator)}
            if header & {*TEXTS}:
                return ""
            count = len(read_pairs(path, encoding=encoding)[1])
            return f"{pluralize(count, 'pair')} of words with scores, a benchmark of word vectors"
        if any(line.startswith(":") for line in rows) or _question_columns(rows):
            count = sum(1 for _ in read_questions(path, encoding, ignore))
            return f"{pluralize(count, 'analogy question')}, a benchmark of word vectors"
    except KeelError:  # another file, or one that is damaged, which is reported when it is read
        return ""
    return ""
