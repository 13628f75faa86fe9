"""Readers of tagged text files: columns, CoNLL-U, word/tag, segmented text, two parallel files."""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from keel.data.column_names import KNOWN_COLUMNS
from keel.data.markup import refuse_markup
from keel.data.row_errors import row_error
from keel.data.sentence_splitting import CHINESE
from keel.data.tables import Columns
from keel.data.tag_schemes import OUTSIDE, is_entity_tag
from keel.data.text_files import open_text
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, note, pluralize

FIELDS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
TAGGED = ("UPOS", "XPOS", "HEAD", "DEPREL")
"""Fields in which _ is a missing value, not an empty one."""
CONLLU = {name: number for number, name in enumerate(FIELDS)}
MAX_COLUMNS = 20
LONG_CHINESE = 4
"""Average length in characters that Chinese words do not reach."""
CHINESE_ENDS = frozenset("。！？…；”」』")
"""Ends of Chinese sentences, which are no tags."""
SLASHED = re.compile(r"\[?(.*?)/([A-Za-z]+)(?:\](?:/?[A-Za-z]+)?)?")
POSITIONED = re.compile(r"^(.)\d+$")
"""A character with its position in the word, as in Weibo's 口0."""
COMMENT = re.compile(r"#\s*\S+\s*=")
WHITESPACE = " \t\r\n\v\f"
"""Other spaces, such as the full-width one, are words in Chinese corpora."""

Lines = list[tuple[int, str]]


class RawSentence(NamedTuple):
    """A sentence of a file with the location of each word; running text has no words."""

    words: list[str]
    tags: list[str] | None
    locations: list[str]
    text: str = ""


def make_sentence(words: Sequence[Any], tags: Sequence[Any] | None, location: str) -> RawSentence:
    """A sentence whose words have one location."""
    if not words:
        raise KeelError(f"{location}: this sentence is empty: drop it")
    if tags is not None and len(words) != len(tags):
        what = f"it has {pluralize(len(words), 'word')} but {pluralize(len(tags), 'tag')}"
        raise KeelError(f"{location}: {what}: give each word one tag")
    for what, values in (("word", words), ("tag", tags or [])):
        for number, value in enumerate(values, 1):
            if value is None or value == "":
                raise KeelError(f"{location}: {what} {number} is empty: fill it in, or drop the sentence")
    return RawSentence(list(map(str, words)), None if tags is None else list(map(str, tags)), [location] * len(words))


def read_tagged_lines(path: Path, name: str, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    """The sentences of a text file; the format is inferred unless it is given."""
    refuse_markup(path, name, columns.encoding)
    file = open_text(path, columns.encoding, on_event, name)
    lines = [(number, line.replace("\ufeff", "")) for number, line in file]
    if beside := tag_file(path):
        return _side_by_side(lines, list(open_text(beside, columns.encoding, on_event)), name)
    format = columns.format if columns.format != "auto" else infer_format(lines, path)
    if format == "conllu":
        return _conllu(lines, name, columns, on_event)
    if format == "columns":
        if columns.format == "auto":
            _refuse_texts(lines, name)
        return _columns(lines, name, columns, on_event)
    words = [word for _, line in lines[:5000] for word in line.split()] if format == "segmented" else []
    if words and _has_slashes(words):
        what = f"words have tags ({words[0]:.20}), which are left out: only the words are used"
        note(on_event, f"{name}: {what} (to learn the tags: --format slashes)")
        lines = [(number, " ".join(map(_without_tag, line.split()))) for number, line in lines]
    described, parse = LINE_FORMATS[format]
    note(on_event, f"{name}: read as {described} (--format {format}; choose another to change it)")
    return _sentences(parse, lines, name)


def _sentences(parse: Callable[[str, str], RawSentence], lines: Lines, name: str) -> Iterator[RawSentence]:
    """A sentence for each line that is not empty."""
    for number, line in lines:
        try:
            if line.strip():
                yield parse(line, f"{name}:{number}")
        except KeelError as error:
            row_error(error)


def tag_file(path: Path) -> Path | None:
    """The file of tags beside the words of ATIS and SNIPS as published: seq.in, seq.out."""
    beside = path.with_name(path.name.replace("seq.in", "seq.out"))
    return beside if path.name.startswith("seq.in") and beside.is_file() else None


def has_tags(lines: list[str]) -> bool:
    """Whether a file with these lines has tagged words; `looks_tagged` is less strict."""
    format = infer_format(list(enumerate(lines)), Path())
    full = [line for line in lines if line.strip() and not line.startswith("-DOCSTART-")]
    if format != "columns" or not full:
        return format in ("conllu", "slashes")
    tabs = _has_tabs(full)
    rows = [_fields(line, tabs) for line in full]
    last = [row[-1] for row in rows if len(row) > 1]
    ended = any(not line.strip() for line in lines[: len(full)])
    named = sum(tag.isascii() for tag in last) * 10 >= len(rows) * 9
    narrow = max(map(len, rows)) <= MAX_COLUMNS
    sure = narrow and ended and named and 2 <= len({*last}) <= len(rows) / 5
    return (sure or _are_entity_tags(last)) and 2 * sum(any(map(_is_text, row)) for row in rows) <= len(rows)


def _are_entity_tags(tags: list[str]) -> bool:
    """Whether nearly all of these are O or have a prefix, as B-PER."""
    return sum(tag == OUTSIDE or ("-" in tag and is_entity_tag(tag)) for tag in tags) * 10 >= len(tags) * 9


def looks_tagged(lines: list[str]) -> bool:
    """Whether these lines are words with tags."""
    return bool(lines) and infer_format(list(enumerate(lines)), Path()) in ("columns", "conllu", "slashes")


def _refuse_texts(lines: Lines, name: str) -> None:
    """Refuse tables of labelled texts, whose cells are not words."""
    full = [line for _, line in lines if line.strip()]
    if not _has_tabs(full):
        return
    rows = [_fields(line, tabs=True) for line in full]
    header = bool({cell.lower() for cell in rows[0]} & KNOWN_COLUMNS)
    texts = sum(any(map(_is_text, row)) for row in rows[header:])
    if texts * 2 > len(rows) - header:
        named = f" (columns {', '.join(rows[0])})" if header else ""
        what = f"{name} looks like labelled texts{named}, and --task tag needs tagged words"
        raise KeelError(f"{what}: give a file of words with tags")


def _is_text(cell: str) -> bool:
    return len(cell) > 10 and (cell.strip().count(" ") > 1 or sum(map(len, CHINESE.findall(cell))) > 10)


def infer_format(lines: Lines, path: Path) -> str:
    """The format of the numbered lines of a file, one of those of `Columns`."""
    full = [line for _, line in lines if line.strip() and not line.startswith("-DOCSTART-")][:5000]
    first = next((line for line in full if not line.startswith("#")), "")
    if ".conllu" in path.suffixes or (first.count("\t") == 9 and re.match(r"\d+(-\d+|\.\d+)?\t", first)):
        return "conllu"
    tabs = _has_tabs(full)
    rows = [_fields(line, tabs) for line in full if not COMMENT.match(line)]
    if not rows:
        return "columns"
    width, often = Counter(map(len, rows)).most_common(1)[0]
    even = often * 10 >= len(rows) * 7
    words = [word for row in rows for word in row]
    if _has_slashes(words) and not (even and width == 1):
        return "slashes"
    blank_lines = any(not line.strip() for _, line in lines[:5000])
    last = [row[-1] for row in rows]
    sentences = sum(field[-1:] in CHINESE_ENDS for field in last) * 2 > len(rows)
    several, few = width > 1 and len(rows) > 1 and not sentences, len({*last}) * 2 < len(rows)
    sure = _are_entity_tags(last)
    if several and (sure or (even and (tabs or blank_lines or few or {*last} & {"O", "B", "S"}))):
        return "columns"
    if several and not even:  # joined or broken lines are reported by the reader
        named = sum(tag[0].isalpha() for tag in last if tag)  # unlike the full stops of tokenized text
        if blank_lines and few and often * 2 > len(rows) and named * 10 >= len(rows) * 7:
            return "columns"
    if even and width == 1:
        length = statistics.median(len(row[0]) for row in rows)
        return "columns" if blank_lines and length < 15 and not _is_chinese_text(lines, rows) else "text"
    chinese = [word for word in words if CHINESE.search(word)]
    dense = len(chinese) * 2 > len(words) and statistics.mean(map(len, chinese)) < LONG_CHINESE
    return "segmented" if dense and width > 1 else "text"


def _has_slashes(words: list[str]) -> bool:
    """Whether nearly all words are word/tag."""
    return bool(words) and sum(SLASHED.fullmatch(word) is not None for word in words) * 10 >= 9 * len(words)


def _without_tag(word: str) -> str:
    parts = SLASHED.fullmatch(word)
    return parts[1] if parts and parts[1] else word


def _is_chinese_text(lines: Lines, rows: list[list[str]]) -> bool:
    """Whether lines without whitespace are Chinese sentences: too long for words, or each a paragraph."""
    chinese = [row[0] for row in rows if CHINESE.search(row[0])]
    if len(chinese) * 2 <= len(rows):
        return False
    alone = not any(one.strip() and two.strip() for (_, one), (_, two) in pairwise(lines))
    return alone or statistics.mean(map(len, chinese)) >= LONG_CHINESE


def _has_tabs(lines: list[str]) -> bool:
    return sum("\t" in line for line in lines) * 2 > len(lines)


def _fields(line: str, tabs: bool) -> list[str]:
    return line.rstrip("\r\n").split("\t") if tabs else re.split(r"[ \t]+", line.strip(WHITESPACE))


class ColumnLayout(NamedTuple):
    """How the lines of a file of words and tags are split into columns."""

    tabs: bool
    width: int
    """Number of columns of most lines."""

    @classmethod
    def of(cls, lines: Lines) -> Self:
        full = [line for _, line in lines if line.strip() and not line.startswith("-DOCSTART-")]
        tabs = _has_tabs(full)
        counts = Counter(len(_fields(line, tabs)) for line in full if not COMMENT.match(line))
        return cls(tabs, counts.most_common(1)[0][0] if counts else 0)

    def rows(self, lines: Lines, name: str, needed: Sequence[int]) -> Iterator[tuple[int, list[str]] | None]:
        """The numbered fields of each word, those `needed` not empty; None between sentences."""
        for number, line in lines:
            # A full-width space is a word without a tag where there are tags; elsewhere the line is empty.
            if not line.strip() and (self.width < 2 or "\u3000" not in line):
                yield None
                continue
            fields = _fields(line, self.tabs)
            if line.startswith("-DOCSTART-") or (
                line.startswith("#") and (len(fields) != self.width or COMMENT.match(line))
            ):
                continue
            if len(fields) != self.width or not all(fields[column] for column in needed):
                what = f"this line has {pluralize(sum(map(bool, fields)), 'column')}, but others have {self.width}"
                more = "put each word on its own line" if len(fields) > self.width else "add the tag of the word"
                remedy = f"{more}, or a blank line at the end of a sentence (running text: --format text)"
                row_error(KeelError(f"{name}:{number}: {what} ({line.strip(WHITESPACE)[:40]!r}): {remedy}"))
                continue
            yield number, fields


def _columns(lines: Lines, name: str, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    layout = ColumnLayout.of(lines)
    width = layout.width
    word = _number(columns.text_column, "text", width, name) if columns.text_column else 0
    tag = _number(columns.label_column, "label", width, name) if columns.label_column else width - 1
    if width:
        tags = f"tags in column {tag + 1}" if tag != word else "no tags"
        note(on_event, f"{name}: words in column {word + 1}, {tags}, of {width}")
    full = [line for _, line in lines if line.strip() and not line.startswith("-DOCSTART-")]
    cells = [fields[word] for fields in (_fields(line, layout.tabs) for line in full) if len(fields) == width]
    positioned = sum(POSITIONED.fullmatch(cell) is not None for cell in cells) * 10 > len(cells) * 9
    if positioned := positioned and sum(map(bool, map(CHINESE.match, cells))) * 2 > len(cells):
        what = f"characters are followed by their position in the word ({cells[0]!r})"
        note(on_event, f"{name}: {what}, which is left out")

    def rows() -> Iterator[tuple[int, str, str | None] | None]:
        for row in layout.rows(lines, name, (word, tag)):
            if row is None:
                yield None
                continue
            number, fields = row
            text = POSITIONED.sub(r"\1", fields[word]) if positioned else fields[word]
            yield number, text, None if tag == word else fields[tag]

    return _grouped(rows(), name)


def _number(column: str, flag: str, width: int, name: str) -> int:
    if not column.isdigit() or not 1 <= int(column) <= width:
        what = f"it has {pluralize(width, 'column')} without names"
        raise UsageError(f"{name}: --{flag}-column {column}: {what}: give {f'1 to {width}' if width > 1 else 1}")
    return int(column) - 1


def _conllu(lines: Lines, name: str, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    def find(column: str, flag: str) -> int:
        found = CONLLU.get(column.upper(), int(column) - 1 if column.isdigit() else -1)
        if not 0 <= found < len(FIELDS):
            raise UsageError(f"{name}: --{flag}-column {column}: CoNLL-U has {', '.join(FIELDS)}")
        return found

    word, tag = find(columns.text_column or "FORM", "text"), find(columns.label_column or "UPOS", "label")

    found = [row and (row[0], row[1][word], row[1][tag]) for row in conllu_rows(lines, name)]
    bare = [row for row in found if row and row[2] in ("_", "")] if FIELDS[tag] in TAGGED else []
    tagged = not bare or len(bare) < sum(map(bool, found))
    tags = f"tags {FIELDS[tag]}" if tagged else f"without {FIELDS[tag]} tags"
    note(on_event, f"{name}: words are {FIELDS[word]}, {tags} (to change it: --label-column)")
    if bare and tagged:
        what = f"{pluralize(len(bare), 'token has', 'tokens have')} no {FIELDS[tag]}, such as {bare[0][1][:40]!r}"
        remedy = "add it, or drop the sentence (only to predict: --label-column MISC)"
        raise KeelError(f"{name}:{bare[0][0]}: {what}: {remedy}")
    return _grouped(found if tagged else (row and (*row[:2], None) for row in found), name)


def conllu_rows(lines: Lines, name: str) -> Iterator[tuple[int, list[str]] | None]:
    """The numbered fields of each word of a CoNLL-U file; None between sentences."""
    for number, line in lines:
        if not line.strip():
            yield None
        elif not line.startswith("#"):
            fields = line.split("\t")
            if len(fields) != len(FIELDS):
                found = pluralize(len(fields), "column")
                what = f"this line has {found}, but CoNLL-U has {len(FIELDS)}, separated by tabs"
                row_error(KeelError(f"{name}:{number}: {what}: correct it, or use --format columns"))
            elif fields[0].isdigit():  # neither 3-4, a multi-word token, nor 5.1, an empty node
                yield number, fields


def _grouped(rows: Iterable[tuple[int, str, str | None] | None], name: str) -> Iterator[RawSentence]:
    """Sentences from lines of words and tags; None ends a sentence."""
    sentence: list[tuple[int, str, str | None]] = []
    for row in [*rows, None]:
        if row is not None:
            sentence.append(row)
        elif sentence:
            words, tags = [word for _, word, _ in sentence], [tag for _, _, tag in sentence if tag is not None]
            yield RawSentence(words, tags or None, [f"{name}:{number}" for number, _, _ in sentence])
            sentence = []


def _slashes(line: str, location: str) -> RawSentence:
    fields = [(field, SLASHED.fullmatch(field)) for field in line.split()]
    for field, parts in fields:
        if parts is None or not parts[1]:
            raise KeelError(f"{location}: {field[:40]!r} has no tag: write word/tag")
    found = [parts.groups() for _, parts in fields if parts]
    return make_sentence([word for word, _ in found], [tag for _, tag in found], location)


def _segmented(line: str, location: str) -> RawSentence:
    """Character tags of a word segmentation (分词): B, M, E in longer words, S for a single character."""
    words = line.split()
    tags = [tag for word in words for tag in ("S" if len(word) == 1 else f"B{'M' * (len(word) - 2)}E")]
    return make_sentence("".join(words), tags, location)


def _running_text(line: str, location: str) -> RawSentence:
    return RawSentence([], None, [location], line)


LINE_FORMATS: dict[str, tuple[str, Callable[[str, str], RawSentence]]] = {
    "slashes": ("word/tag", _slashes),
    "segmented": ("words separated by whitespace (word segmentation)", _segmented),
    "text": ("text without tags, one sentence per line", _running_text),
}
"""Formats of one sentence per line: a description, and the parser of a line."""


def _side_by_side(lines: Lines, others: Lines, name: str) -> Iterator[RawSentence]:
    for (number, line), (_, tags) in zip(lines, others, strict=False):
        try:
            if tags.strip() and not line.strip():
                what = f"this line is empty, but that of seq.out has {pluralize(len(tags.split()), 'tag')}"
                raise KeelError(f"{name}:{number}: {what}: add the words, or drop both lines")
            if line.strip():
                yield make_sentence(line.split(), tags.split(), f"{name}:{number}")
        except KeelError as error:
            row_error(error)
    if len(lines) != len(others):
        raise KeelError(f"{name} has {len(lines)} lines, but its seq.out has {len(others)}: give matching files")
