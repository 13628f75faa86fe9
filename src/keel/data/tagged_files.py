"""Tagged words in the lines of a file, in whatever form: columns, CoNLL-U, word/tag, segmented text, two files."""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from keel.data.examples import Columns
from keel.data.sentence_splitting import CHINESE
from keel.data.tables import KNOWN_COLUMNS
from keel.data.tag_schemes import OUTSIDE, is_entity_tag
from keel.data.text_files import open_text
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, counted, note

FIELDS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
TAGGED = ("UPOS", "XPOS", "HEAD", "DEPREL")
"""Fields that every word has where a file has them: _ is one that is missing, not a word without features."""
CONLLU = {name: number for number, name in enumerate(FIELDS)}
FORMS = {
    "slashes": "word/tag",
    "segmented": "words with blanks between them, to learn where words end",
    "text": "text without tags, a sentence in each line",
}
LONG_CHINESE = 4
"""Characters that Chinese words do not have on average."""
SLASHED = re.compile(r"\[?(.*)/([A-Za-z]+)(?:\](?:/?[A-Za-z]+)?)?")
COMMENT = re.compile(r"#\s*\S+\s*=")
BLANK = " \t\r\n\v\f"
"""Other spaces, such as that of full width, are words of Chinese corpora."""

Lines = list[tuple[int, str]]


class RawSentence(NamedTuple):
    """One sentence as it was found, and the place of each of its words; of running text, these are not told apart."""

    words: list[str]
    tags: list[str] | None
    locations: list[str]
    text: str = ""
    """Running text."""


def make_sentence(words: list[Any], tags: list[Any] | None, place: str) -> RawSentence:
    """A sentence all of whose words stand in one place."""
    if not words:
        raise KeelError(f"{place}: this sentence is empty: drop it")
    if tags is not None and len(words) != len(tags):
        what = f"it has {counted(len(words), 'word')} but {counted(len(tags), 'tag')}"
        raise KeelError(f"{place}: {what}: give every word one")
    for values in (words, tags or []):
        for number, value in enumerate(values):
            if value is None or value == "":
                what = "word" if values is words else "tag"
                raise KeelError(f"{place}: {what} {number + 1} is empty: fill it in, or drop the sentence")
    return RawSentence(list(map(str, words)), None if tags is None else list(map(str, tags)), [place] * len(words))


def read_tagged_lines(path: Path, name: str, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    """The sentences of a plain file, which goes by this name; unless it is asked for, the form is found out."""
    beside = path.parent / path.name.replace("seq.in", "seq.out")
    lines = list(open_text(path, columns.encoding, on_event))
    if path.name.startswith("seq.in") and beside.is_file():  # ATIS, SNIPS: words here, tags there
        yield from _side_by_side(lines, list(open_text(beside, columns.encoding, on_event)), name)
        return
    form = columns.format if columns.format != "auto" else _form(lines, path)
    if form in FORMS:
        note(on_event, f"{name}: read as {FORMS[form]} (--format {form}; name another to change that)")
    if form == "conllu":
        yield from _conllu(lines, name, columns, on_event)
    elif form == "columns":
        if columns.format == "auto":
            _refuse_texts(lines, name)
        yield from _columns(lines, name, columns, on_event)
    elif form == "slashes":
        yield from _slashes(lines, name)
    elif form == "segmented":
        yield from _segmented(lines, name)
    else:
        for number, line in lines:
            if line.strip():
                yield RawSentence([], None, [f"{name}:{number}"], line)


def looks_tagged(lines: list[str]) -> bool:
    """Whether these lines hold words and their tags."""
    return bool(lines) and _form(list(enumerate(lines)), Path()) in ("columns", "conllu", "slashes")


def _refuse_texts(lines: Lines, name: str) -> None:
    """Labelled texts are a table too, but what stands in a cell of theirs is no word."""
    full = [line for _, line in lines if line.strip()]
    if not _has_tabs(full):
        return
    rows = [_fields(line, tabs=True) for line in full]
    header = bool({cell.lower() for cell in rows[0]} & KNOWN_COLUMNS)
    texts = sum(any(map(_is_text, row)) for row in rows[header:])
    if texts * 2 > len(rows) - header:
        named = f" (columns {', '.join(rows[0])})" if header else ""
        what = f"{name} looks like labelled texts{named}, and this model tags words"
        raise KeelError(f"{what}: give it a file of tagged words")


def _is_text(cell: str) -> bool:
    return len(cell) > 10 and (cell.strip().count(" ") > 1 or sum(map(len, CHINESE.findall(cell))) > 10)


def _form(lines: Lines, path: Path) -> str:
    """What the lines look like."""
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
    slashed = sum(SLASHED.fullmatch(word) is not None for word in words)
    if slashed * 10 >= 9 * len(words) and not (even and width == 1):
        return "slashes"
    blanks = any(not line.strip() for _, line in lines[:5000])
    last = [row[-1] for row in rows]
    several, few = width > 1 and len(rows) > 1, len({*last}) * 2 < len(rows)
    sure = sum(tag == OUTSIDE or ("-" in tag and is_entity_tag(tag)) for tag in last) * 10 >= len(rows) * 9
    if several and (sure or (even and (tabs or blanks or few or {*last} & {"O", "B", "S"}))):
        return "columns"
    if several and not even:  # lines that were glued or torn are named when they are read
        named = sum(tag[0].isalpha() for tag in last if tag)  # unlike the full stops of tokenized text
        if blanks and few and often * 2 > len(rows) and named * 10 >= len(rows) * 7:
            return "columns"
    if even and width == 1:
        length = statistics.median(len(row[0]) for row in rows)
        return "columns" if blanks and length < 15 and not _is_chinese_text(lines, rows) else "text"
    chinese = [word for word in words if CHINESE.search(word)]
    dense = len(chinese) * 2 > len(words) and statistics.mean(map(len, chinese)) < LONG_CHINESE
    return "segmented" if dense and width > 1 else "text"


def _is_chinese_text(lines: Lines, rows: list[list[str]]) -> bool:
    """Whether lines without blanks are Chinese sentences: too long for words, or each a paragraph of its own."""
    chinese = [row[0] for row in rows if CHINESE.search(row[0])]
    if len(chinese) * 2 <= len(rows):
        return False
    alone = not any(one.strip() and two.strip() for (_, one), (_, two) in pairwise(lines))
    return alone or statistics.mean(map(len, chinese)) >= LONG_CHINESE


def _has_tabs(lines: list[str]) -> bool:
    return sum("\t" in line for line in lines) * 2 > len(lines)


def _fields(line: str, tabs: bool) -> list[str]:
    return line.rstrip("\r\n").split("\t") if tabs else re.split(r"[ \t]+", line.strip(BLANK))


def _columns(lines: Lines, name: str, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    full = [line for _, line in lines if line.strip() and not line.startswith("-DOCSTART-")]
    tabs = _has_tabs(full)
    counts = Counter(len(_fields(line, tabs)) for line in full if not COMMENT.match(line))
    width = counts.most_common(1)[0][0] if counts else 0
    word = _number(columns.text_column, "text", width, name) if columns.text_column else 0
    tag = _number(columns.label_column, "label", width, name) if columns.label_column else width - 1
    if full:
        tags = f"tags in column {tag + 1}" if tag != word else "no tags"
        note(on_event, f"{name}: words in column {word + 1}, {tags}, of {width}")

    def rows() -> Iterator[tuple[int, str, str | None] | None]:
        for number, line in lines:
            # A wide blank alone is a character without its tag where there are tags; elsewhere it is nothing.
            if not line.strip() and (width < 2 or "\u3000" not in line):
                yield None
                continue
            fields = _fields(line, tabs)
            if line.startswith("-DOCSTART-") or (
                line.startswith("#") and (len(fields) != width or COMMENT.match(line))
            ):
                continue
            if len(fields) != width or not fields[word] or not fields[tag]:
                what = f"this line has {counted(sum(map(bool, fields)), 'column')} where others have {width}"
                more = "each word a line of its own" if len(fields) > width else "the word its tag"
                remedy = f"give {more}, or a blank line where a sentence ends (running text: --format text)"
                raise KeelError(f"{name}:{number}: {what} ({line.strip(BLANK)[:40]!r}): {remedy}")
            yield number, fields[word], None if tag == word else fields[tag]

    return _grouped(rows(), name)


def _number(column: str, flag: str, width: int, name: str) -> int:
    if not column.isdigit() or not 1 <= int(column) <= width:
        what = f"it has {counted(width, 'column')} without names"
        raise UsageError(f"{name}: --{flag}-column {column}: {what}: give {f'1 to {width}' if width > 1 else 1}")
    return int(column) - 1


def _conllu(lines: Lines, name: str, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    def find(column: str, flag: str) -> int:
        found = CONLLU.get(column.upper(), int(column) - 1 if column.isdigit() else -1)
        if not 0 <= found < len(FIELDS):
            raise UsageError(f"{name}: --{flag}-column {column}: CoNLL-U has {', '.join(FIELDS)}")
        return found

    word, tag = find(columns.text_column or "FORM", "text"), find(columns.label_column or "UPOS", "label")

    def rows() -> Iterator[tuple[int, str, str | None] | None]:
        for number, line in lines:
            if not line.strip():
                yield None
            elif not line.startswith("#"):
                fields = line.split("\t")
                if len(fields) != len(FIELDS):
                    found = counted(len(fields), "column")
                    what = f"this line has {found}, CoNLL-U has {len(FIELDS)}, told apart by tabs"
                    raise KeelError(f"{name}:{number}: {what}: mend it, or say --format columns")
                if fields[0].isdigit():  # not 3-4, a word that stands for two, nor 5.1, one that is not written
                    yield number, fields[word], fields[tag]

    found = list(rows())
    bare = [row for row in found if row and row[2] in ("_", "")] if FIELDS[tag] in TAGGED else []
    tagged = not bare or len(bare) < sum(map(bool, found))
    tags = f"tags {FIELDS[tag]}" if tagged else f"without {FIELDS[tag]} tags"
    note(on_event, f"{name}: words are {FIELDS[word]}, {tags} (--label-column takes another)")
    if bare and tagged:
        what = f"{counted(len(bare), 'token has', 'tokens have')} no {FIELDS[tag]}, here {bare[0][1][:40]!r}"
        raise KeelError(
            f"{name}:{bare[0][0]}: {what}: give it one, or drop its sentence (only to predict: --label-column MISC)"
        )
    return _grouped(found if tagged else (row and (*row[:2], None) for row in found), name)


def _grouped(rows: Iterable[tuple[int, str, str | None] | None], name: str) -> Iterator[RawSentence]:
    """Words and tags line by line as sentences: None ends one."""
    held: list[tuple[int, str, str | None]] = []
    for row in [*rows, None]:
        if row is not None:
            held.append(row)
        elif held:
            words, tags = [word for _, word, _ in held], [tag for _, _, tag in held if tag is not None]
            yield RawSentence(words, tags or None, [f"{name}:{number}" for number, _, _ in held])
            held = []


def _slashes(lines: Lines, name: str) -> Iterator[RawSentence]:
    for number, line in lines:
        words: list[str] = []
        tags: list[str] = []
        for field in line.split():
            parts = SLASHED.fullmatch(field)
            if parts is None or not parts[1]:
                raise KeelError(f"{name}:{number}: {field[:40]!r} has no tag: write word/tag")
            words.append(parts[1])
            tags.append(parts[2])
        if words:
            yield RawSentence(words, tags, [f"{name}:{number}"] * len(words))


def _segmented(lines: Lines, name: str) -> Iterator[RawSentence]:
    """A tag for each character: B, M and E in a word of several, S for one alone (分词)."""
    for number, line in lines:
        words = line.split()
        tags = [tag for word in words for tag in ("S" if len(word) == 1 else f"B{'M' * (len(word) - 2)}E")]
        if words:
            yield RawSentence(list("".join(words)), tags, [f"{name}:{number}"] * len(tags))


def _side_by_side(lines: Lines, others: Lines, name: str) -> Iterator[RawSentence]:
    for (number, line), (_, tags) in zip(lines, others, strict=False):
        if tags.strip() and not line.strip():
            what = f"this line is blank, but its line of seq.out has {counted(len(tags.split()), 'tag')}"
            raise KeelError(f"{name}:{number}: {what}: give the words, or drop both lines")
        if line.strip():
            yield make_sentence(line.split(), tags.split(), f"{name}:{number}")
    if len(lines) != len(others):
        raise KeelError(f"{name} has {len(lines)} lines and its seq.out {len(others)}: the two are not of one set")
