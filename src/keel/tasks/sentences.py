"""Sentences whose words have tags, in whatever form they come: columns, CoNLL-U, word/tag, segmented text, records."""

import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.tasks.entities import (
    LETTERS,
    OUTSIDE,
    Scheme,
    all_tags,
    breaks,
    entities,
    fits,
    has_slips,
    scheme_of,
    write_tags,
)
from keel.tasks.examples import ANY, Columns, Example, Examples
from keel.tasks.tables import KNOWN, load_table, refuse_two_files, spooled
from keel.text.files import kind_of, open_text
from keel.text.sentences import CHINESE, CJK

FIELDS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
CONLLU = {name: number for number, name in enumerate(FIELDS)}
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags", "pos_tags", "labels", "ner", "pos", "upos", "gold")
"""Other people's names for the two fields of a record."""
LONG_SENTENCE, LONG_WORD = 400, 1000
LONG_CHINESE = 4
"""Characters that Chinese words do not have on average."""
SLASHED = re.compile(r"\[?(.*)/([A-Za-z]+)(?:\](?:/?[A-Za-z]+)?)?")
COMMENT = re.compile(r"#\s*\S+\s*=")
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+(?:[-'’.][^\W{CJK}]+)*|[^\w\s]|_")

Lines = list[tuple[int, str]]


class Raw(NamedTuple):
    """One sentence as it was found, and the place of each of its words; of running text, these are not told apart."""

    words: list[str]
    tags: list[str] | None
    places: list[str]
    text: str = ""
    """Running text."""


def read_sentences(source: Any, columns: Columns = ANY, on_event: OnEvent = ignore) -> Examples:
    """Read a file, `-`, a list of texts, of words or of (words, tags), dicts or a DataFrame.

    Tags of entities are checked, and come in one scheme: broken ones are read as conlleval does, and that is said.
    """
    if isinstance(source, Examples):
        return source
    refuse_two_files(source)
    if isinstance(source, str | Path) and str(source) == "-":
        with tempfile.TemporaryDirectory() as folder:
            name, found = "standard input", list(_file(spooled(Path(folder)), "standard input", columns, on_event))
    elif isinstance(source, str | Path):
        name, found = str(source), list(_file(Path(source), str(source), columns, on_event))
    else:
        name, found = "the list", list(_items(source, columns, on_event))
    if not found:
        raise KeelError(f"{name} holds no sentences: give a word and its tag in every line, a blank line after each")
    _warn(found, on_event)
    tagged = [sentence for sentence in found if sentence.tags is not None]
    if not tagged:
        return Examples([_example(sentence, None) for sentence in found], None, name)
    if len(tagged) < len(found):
        bare = next(sentence for sentence in found if sentence.tags is None)
        raise KeelError(f"{bare.places[0]}: this sentence has no tags, though others have: tag it, or drop it")
    scheme = scheme_of(sentence.tags or [] for sentence in found)
    if scheme == "none":
        _refuse_slips(found, columns)
    wanted = _wanted(found, scheme, columns, name, on_event)
    tags = [_converted(sentence.tags or [], scheme, wanted) for sentence in found]
    if scheme != "none":
        _tell_breaks(found, scheme, on_event)
    items = [_example(sentence, each) for sentence, each in zip(found, tags, strict=True)]
    names = all_tags((tag for each in tags for tag in each), wanted)
    return Examples(items, "tags", name, names=tuple(sorted(names)))


def split_words(text: str, *, chinese_words: bool = False) -> list[str]:
    """The words and marks of a running text; Chinese by the character, or as jieba sees words."""
    if not chinese_words or not CHINESE.search(text):
        return WORD.findall(text)
    from keel.text.words import chinese_word_starts

    edges = [*sorted(chinese_word_starts(text)), len(text)]
    parts = [text[start:end] for start, end in pairwise(edges)]
    return [word for part in parts for word in ([part] if CHINESE.match(part) else WORD.findall(part))]


def _example(sentence: Raw, tags: Sequence[str] | None) -> Example:
    words = tuple(sentence.words)
    apart = "" if all(len(word) == 1 for word in words) and any(map(CHINESE.match, words)) else " "
    label = None if tags is None else tuple(tags)
    return Example(sentence.text or apart.join(words), None, label, sentence.places[0], words)


def _refuse_slips(found: list[Raw], columns: Columns) -> None:
    """One odd tag would make plain tags of all, so that no entity is scored."""
    slips = has_slips(sentence.tags or [] for sentence in found)
    if not slips and columns.scheme == "auto":
        return
    for sentence in found:
        for tag, place in zip(sentence.tags or [], sentence.places, strict=True):
            if not fits(tag) and slips:
                scheme = scheme_of([tag for tag in each.tags or [] if fits(tag)] for each in found)
                what = f"{tag!r} is no {scheme.removesuffix('1')} tag, though nearly all others are"
                raise KeelError(f"{place}: {what}: mend it")
            if not fits(tag):
                what = f"{tag!r} is no BIO tag, so there is nothing to make {columns.scheme} of"
                raise UsageError(f"{place}: {what}: mend it, or leave out --scheme")


def _wanted(found: list[Raw], scheme: Scheme, columns: Columns, name: str, on_event: OnEvent) -> Scheme:
    if columns.scheme != "auto" and scheme == "none":
        raise UsageError(
            f"{name}: its tags are no BIO, so there is nothing to make {columns.scheme} of: leave out --scheme"
        )
    wanted = columns.scheme if columns.scheme != "auto" else "BIO" if scheme == "BIO1" else scheme
    known = f"{scheme} (a B only where two entities of one type meet)" if scheme == "BIO1" else scheme
    places = {tag.partition("-")[0] for sentence in found for tag in sentence.tags or []} if scheme != "none" else set()
    if others := places - {OUTSIDE, *LETTERS.get(scheme, "")}:
        known = f"{scheme} with other letters ({', '.join(sorted(others))})"
    if wanted != scheme or others:
        note(on_event, f"{name}: the tags are {known} and are learned as {wanted}")
    return wanted


def _converted(tags: Sequence[str], scheme: Scheme, wanted: Scheme) -> Sequence[str]:
    # BILOU and BMEWO have letters of their own for what is in BIOES and BMES.
    kept = scheme == wanted and {*tags} <= all_tags(tags, wanted) and not any(True for _ in breaks(tags, scheme))
    return tags if kept else write_tags(entities(tags), len(tags), wanted)


def _tell_breaks(found: list[Raw], scheme: Scheme, on_event: OnEvent) -> None:
    broken = [(sentence, place) for sentence in found for place in breaks(sentence.tags or [], scheme)]
    if broken:
        (sentence, place), tags = broken[0], broken[0][0].tags or []
        before = tags[place - 1] if place else "the start of the sentence"
        what = f"{tags[place]!r} after {before!r}" if place else f"{tags[place]!r} at {before}"
        remedy = "read as conlleval reads them: an entity starts or ends there; mend them if that is wrong"
        note(on_event, f"{sentence.places[place]}: {len(broken)} tags break {scheme}, here {what}; they are {remedy}")


def _warn(found: list[Raw], on_event: OnEvent) -> None:
    """What is read all the same, but is hardly meant so."""
    sizes = [len(sentence.words) for sentence in found]
    most = min(LONG_SENTENCE, max(100.0, 20 * statistics.median(sizes))) if len(sizes) > 1 else LONG_SENTENCE
    # A sentence of one line ends where the line ends.
    glued = [each for each in found if len(each.words) > most and each.places[0] != each.places[-1]]
    if glued:
        longest = max(glued, key=lambda sentence: len(sentence.words))
        what = f"a sentence of {len(longest.words):,} words starts here ({len(glued)} have more than {most:.0f})"
        note(on_event, f"{longest.places[0]}: {what}: is a blank line between sentences missing?")
    long = [(word, place) for sentence in found for word, place in zip(sentence.words, sentence.places, strict=False)
            if len(word) > LONG_WORD]  # fmt: skip
    if long:
        word, place = long[0]
        what = f"a word of {len(word):,} characters ({len(long)} such words): only its start is read"
        note(on_event, f"{place}: {what}; is a separator missing?")


def _items(source: Any, columns: Columns, on_event: OnEvent) -> Iterator[Raw]:
    """The sentences of a list or a DataFrame."""
    items = source if hasattr(source, "columns") else list(source)
    if hasattr(items, "columns") or (items and all(isinstance(item, dict) for item in items)):
        yield from _records(items, "", columns, on_event)
        return
    for number, item in enumerate(items):
        place = f"item {number} of the list"
        match item:
            case str():
                yield Raw([], None, [place], item)
            case (list() | tuple()) as words, (list() | tuple()) as tags:
                yield _paired(list(words), list(tags), place)
            case list() | tuple() if all(isinstance(word, str) for word in item):
                yield _paired(list(item), None, place)
            case _:
                raise KeelError(f"{place} is {item!r:.60}: give a text, words, or (words, tags)")


def _paired(words: list[Any], tags: list[Any] | None, place: str) -> Raw:
    if not words:
        raise KeelError(f"{place}: this sentence is empty: drop it")
    if tags is not None and len(words) != len(tags):
        raise KeelError(f"{place}: there are {len(words)} words but {len(tags)} tags: give every word one")
    for values in (words, tags or []):
        for number, value in enumerate(values):
            if value is None or value == "":
                what = "word" if values is words else "tag"
                raise KeelError(f"{place}: {what} {number + 1} is empty: fill it in, or drop the sentence")
    return Raw(list(map(str, words)), None if tags is None else list(map(str, tags)), [place] * len(words))


def _records(source: Any, name: str, columns: Columns, on_event: OnEvent) -> Iterator[Raw]:
    table = load_table(source, pair=False, named=[], encoding=columns.encoding, on_event=on_event)
    lowered = [column.lower() for column in table.columns]

    def find(asked: str, known: Sequence[str], flag: str) -> int | None:
        if asked:
            return table.column(asked, flag)
        return next((lowered.index(each) for each in known if each in lowered), None)

    words, tags = find(columns.text_column, WORDS, "text"), find(columns.label_column, TAGS, "label")
    if words is None:
        known = ", ".join(map(repr, table.columns))
        raise KeelError(f"{table.source} has no column of words: it has {known} (say which with --text-column)")
    for row, place in zip(zip(*table.cells, strict=True), table.places, strict=True):
        if not all(isinstance(row[column], list | tuple) for column in (words, tags) if column is not None):
            raise KeelError(f"{place}: words and tags must be lists, such as {{'words': ['a'], 'tags': ['O']}}")
        yield _paired(list(row[words]), None if tags is None else list(row[tags]), place)


def _file(path: Path, name: str, columns: Columns, on_event: OnEvent) -> Iterator[Raw]:
    if kind_of(path) in ("jsonl", "parquet"):
        yield from _records(path, name, columns, on_event)
        return
    beside = path.parent / path.name.replace("seq.in", "seq.out")
    lines = list(open_text(path, columns.encoding, on_event))
    if path.name.startswith("seq.in") and beside.is_file():  # ATIS, SNIPS: words here, tags there
        yield from _side_by_side(lines, list(open_text(beside, columns.encoding, on_event)), name)
        return
    form = columns.form if columns.form != "auto" else _form(lines, path)
    if form == "conllu":
        yield from _conllu(lines, name, columns, on_event)
    elif form == "columns":
        if columns.form == "auto":
            _refuse_texts(lines, name)
        yield from _columns(lines, name, columns, on_event)
    elif form == "slashes":
        note(on_event, f"{name}: read as word/tag (--form to change that)")
        yield from _slashes(lines, name)
    elif form == "segmented":
        note(
            on_event,
            f"{name}: read as words with blanks between them, to learn where words end (--form to change that)",
        )
        yield from _segmented(lines, name)
    else:
        note(on_event, f"{name}: read as text without tags, a sentence in each line (--form to change that)")
        for number, line in lines:
            if line.strip():
                yield Raw([], None, [f"{name}:{number}"], line)


def _refuse_texts(lines: Lines, name: str) -> None:
    """Labelled texts are a table too, but what stands in a cell of theirs is no word."""
    full = [line for _, line in lines if line.strip()]
    if not _has_tabs(full):
        return
    rows = [_fields(line, tabs=True) for line in full]
    header = bool({cell.lower() for cell in rows[0]} & KNOWN)
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
    blanks = any(not line.strip() for _, line in lines[:5000])
    last = [row[-1] for row in rows]
    several, few = width > 1 and len(rows) > 1, len({*last}) * 2 < len(rows)
    if several and even and (tabs or blanks or few or {*last} & {"O", "B", "S"}):
        return "columns"
    if several and not even:  # lines that were glued or torn are named when they are read
        sure = sum(tag == OUTSIDE or ("-" in tag and fits(tag)) for tag in last)
        named = sum(tag[0].isalpha() for tag in last if tag)  # unlike the full stops of tokenized text
        if sure * 10 >= len(rows) * 9 or (blanks and few and often * 2 > len(rows) and named * 10 >= len(rows) * 7):
            return "columns"
    if even and width == 1:
        length = statistics.median(len(row[0]) for row in rows)
        return "columns" if blanks and length < 15 and not _is_chinese_text(lines, rows) else "text"
    words = [word for row in rows for word in row]
    if sum(SLASHED.fullmatch(word) is not None for word in words) * 10 >= 9 * len(words):
        return "slashes"
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
    # Other spaces, such as that of full width, are words of Chinese corpora.
    return line.rstrip("\r\n").split("\t") if tabs else re.split(r"[ \t]+", line.strip(" \t\r\n"))


def _columns(lines: Lines, name: str, columns: Columns, on_event: OnEvent) -> Iterator[Raw]:
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
            if not line.strip():
                yield None
                continue
            fields = _fields(line, tabs)
            if line.startswith("-DOCSTART-") or (
                line.startswith("#") and (len(fields) != width or COMMENT.match(line))
            ):
                continue
            if len(fields) != width or not fields[word] or not fields[tag]:
                what = f"this line has {len([f for f in fields if f])} columns where others have {width}"
                more = "each word a line of its own" if len(fields) > width else "the word its tag"
                remedy = f"give {more}, or a blank line where a sentence ends (running text: --form text)"
                raise KeelError(f"{name}:{number}: {what} ({line.strip()[:40]!r}): {remedy}")
            yield number, fields[word], None if tag == word else fields[tag]

    return _grouped(rows(), name)


def _number(column: str, flag: str, width: int, name: str) -> int:
    if not column.isdigit() or not 1 <= int(column) <= width:
        raise UsageError(f"{name}: --{flag}-column {column}: it has {width} columns without names: give 1 to {width}")
    return int(column) - 1


def _conllu(lines: Lines, name: str, columns: Columns, on_event: OnEvent) -> Iterator[Raw]:
    def find(column: str, flag: str) -> int:
        found = CONLLU.get(column.upper(), int(column) - 1 if column.isdigit() else -1)
        if not 0 <= found < len(FIELDS):
            raise UsageError(f"{name}: --{flag}-column {column}: CoNLL-U has {', '.join(FIELDS)}")
        return found

    word, tag = find(columns.text_column or "FORM", "text"), find(columns.label_column or "UPOS", "label")
    note(on_event, f"{name}: words are {FIELDS[word]}, tags {FIELDS[tag]} (--label-column takes another)")

    def rows() -> Iterator[tuple[int, str, str | None] | None]:
        for number, line in lines:
            if not line.strip():
                yield None
            elif not line.startswith("#"):
                fields = line.split("\t")
                if len(fields) != len(FIELDS):
                    what = f"this line has {len(fields)} columns, CoNLL-U has {len(FIELDS)}, told apart by tabs"
                    raise KeelError(f"{name}:{number}: {what}: mend it, or say --form columns")
                if fields[0].isdigit():  # not 3-4, a word that stands for two, nor 5.1, one that is not written
                    yield number, fields[word], fields[tag]

    return _grouped(rows(), name)


def _grouped(rows: Iterable[tuple[int, str, str | None] | None], name: str) -> Iterator[Raw]:
    """Words and tags line by line as sentences: None ends one."""
    held: list[tuple[int, str, str | None]] = []
    for row in [*rows, None]:
        if row is not None:
            held.append(row)
        elif held:
            words, tags = [word for _, word, _ in held], [tag for _, _, tag in held if tag is not None]
            yield Raw(words, tags or None, [f"{name}:{number}" for number, _, _ in held])
            held = []


def _slashes(lines: Lines, name: str) -> Iterator[Raw]:
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
            yield Raw(words, tags, [f"{name}:{number}"] * len(words))


def _segmented(lines: Lines, name: str) -> Iterator[Raw]:
    """A tag for each character: B, M and E in a word of several, S for one alone (分词)."""
    for number, line in lines:
        words = line.split()
        tags = [tag for word in words for tag in ("S" if len(word) == 1 else f"B{'M' * (len(word) - 2)}E")]
        if words:
            yield Raw(list("".join(words)), tags, [f"{name}:{number}"] * len(tags))


def _side_by_side(lines: Lines, others: Lines, name: str) -> Iterator[Raw]:
    for (number, line), (_, tags) in zip(lines, others, strict=False):
        if tags.strip() and not line.strip():
            what = f"this line is blank, but its line of seq.out has {len(tags.split())} tags"
            raise KeelError(f"{name}:{number}: {what}: give the words, or drop both lines")
        if line.strip():
            yield _paired(line.split(), tags.split(), f"{name}:{number}")
    if len(lines) != len(others):
        raise KeelError(f"{name} has {len(lines)} lines and its seq.out {len(others)}: the two are not of one set")
