"""Sentences whose words have tags, in whatever form they come: columns, CoNLL-U, word/tag, segmented text, records."""

import re
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from keel.data.corpus_sample import LONG_WORD
from keel.data.examples import DEFAULT_COLUMNS, Columns, Example, Examples
from keel.data.sentence_splitting import CHINESE, CJK
from keel.data.tables import load_table, refuse_two_files, spool_stdin
from keel.data.tag_schemes import (
    FOREIGN,
    LETTERS,
    OUTSIDE,
    Scheme,
    complete_tags,
    detect_scheme,
    extract_entities,
    has_few_foreign_letters,
    has_few_other_tags,
    invalid_transitions,
    is_entity_tag,
    write_tags,
)
from keel.data.tagged_files import RawSentence, make_sentence, read_tagged_lines
from keel.data.text_files import file_kind
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, counted, ignore, note

WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags", "pos_tags", "labels", "ner", "pos", "upos", "gold")
"""Other people's names for the two fields of a record."""
STOPS = (".", "!", "?")
LONG_SENTENCE = 400
GOES_ON = 1e-3
"""The share of sentences that do go on after a full stop in clean files; Chinese ones often do, and are not asked."""
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+(?:[-'’.][^\W{CJK}]+)*|[^\w\s]|_")


def read_tagged_sentences(source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
    """Read a file, `-`, a list of texts, of words or of (words, tags), dicts or a DataFrame.

    Tags of entities are checked, and come in one scheme: broken ones are read as conlleval does, and that is said.
    """
    if isinstance(source, Examples):
        return source
    refuse_two_files(source)
    if isinstance(source, str | Path) and str(source) == "-":
        with tempfile.TemporaryDirectory() as folder:
            name, found = "standard input", list(_file(spool_stdin(Path(folder)), "standard input", columns, on_event))
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
        raise KeelError(f"{bare.locations[0]}: this sentence has no tags, though others have: tag it, or drop it")
    scheme = detect_scheme(sentence.tags or [] for sentence in found)
    if scheme == "none":
        _refuse_slips(found, columns)
    elif has_few_foreign_letters(sentence.tags or [] for sentence in found):
        _refuse_foreign(found)
    wanted = _wanted(found, scheme, columns, name, on_event)
    tags = [_converted(sentence.tags or [], scheme, wanted) for sentence in found]
    if scheme != "none":
        _tell_breaks(found, scheme, on_event)
    items = [_example(sentence, each) for sentence, each in zip(found, tags, strict=True)]
    names = complete_tags((tag for each in tags for tag in each), wanted)
    return Examples(items, "tags", name, names=tuple(sorted(names)))


def split_words(text: str, *, chinese_words: bool = False) -> list[str]:
    """The words and marks of a running text; Chinese by the character, or as jieba sees words."""
    if not chinese_words or not CHINESE.search(text):
        return WORD.findall(text)
    from keel.data.word_starts import chinese_word_starts

    edges = [*sorted(chinese_word_starts(text)), len(text)]
    parts = [text[start:end] for start, end in pairwise(edges)]
    return [word for part in parts for word in ([part] if CHINESE.match(part) else WORD.findall(part))]


def _example(sentence: RawSentence, tags: Sequence[str] | None) -> Example:
    words = tuple(sentence.words)
    apart = "" if all(len(word) == 1 for word in words) and any(map(CHINESE.match, words)) else " "
    label = None if tags is None else tuple(tags)
    return Example(sentence.text or apart.join(words), None, label, sentence.locations[0], words)


def _refuse_slips(found: list[RawSentence], columns: Columns) -> None:
    """One odd tag would make plain tags of all, so that no entity is scored."""
    slips = has_few_other_tags(sentence.tags or [] for sentence in found)
    if not slips and columns.scheme == "auto":
        return
    for sentence in found:
        for tag, place in zip(sentence.tags or [], sentence.locations, strict=True):
            if not is_entity_tag(tag) and slips:
                scheme = detect_scheme([tag for tag in each.tags or [] if is_entity_tag(tag)] for each in found)
                what = f"{tag!r} is no {scheme.removesuffix('1')} tag, though nearly all others are"
                raise KeelError(f"{place}: {what}: mend it")
            if not is_entity_tag(tag):
                what = f"{tag!r} is no BIO tag, so there is nothing to make {columns.scheme} of"
                raise UsageError(f"{place}: {what}: mend it, or leave out --scheme")


def _refuse_foreign(found: list[RawSentence]) -> None:
    """One sentence of BIOES would make broken tags of all others."""
    placed = ((tag, place) for each in found for tag, place in zip(each.tags or [], each.locations, strict=True))
    tag, place = next((tag, place) for tag, place in placed if tag[0] in FOREIGN)
    raise KeelError(f"{place}: {tag!r} is no BIO tag, though nearly all others are: mend it")


def _wanted(found: list[RawSentence], scheme: Scheme, columns: Columns, name: str, on_event: OnEvent) -> Scheme:
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
        note(on_event, f"{name}: the tags are {known} and are read as {wanted}")
    return wanted


def _converted(tags: Sequence[str], scheme: Scheme, wanted: Scheme) -> Sequence[str]:
    # BILOU and BMEWO have letters of their own for what is in BIOES and BMES.
    kept = (
        scheme == wanted
        and {*tags} <= complete_tags(tags, wanted)
        and not any(True for _ in invalid_transitions(tags, scheme))
    )
    return tags if kept else write_tags(extract_entities(tags), len(tags), wanted)


def _tell_breaks(found: list[RawSentence], scheme: Scheme, on_event: OnEvent) -> None:
    broken = [(sentence, place) for sentence in found for place in invalid_transitions(sentence.tags or [], scheme)]
    if broken:
        (sentence, place), tags = broken[0], broken[0][0].tags or []
        if place == len(tags):
            what = f"{tags[-1]!r} at the end of the sentence"
        else:
            what = f"{tags[place]!r} {f'after {tags[place - 1]!r}' if place else 'at the start of the sentence'}"
        remedy = "an entity starts or ends there, as conlleval reads it: mend the tags if that is wrong"
        breaking = counted(len(broken), "tag breaks", "tags break")
        note(on_event, f"{sentence.locations[min(place, len(tags) - 1)]}: {breaking} {scheme}, here {what}; {remedy}")


def _warn(found: list[RawSentence], on_event: OnEvent) -> None:
    """What is read all the same, but is hardly meant so."""
    sizes = [len(sentence.words) for sentence in found]
    most = min(LONG_SENTENCE, max(100.0, 20 * statistics.median(sizes))) if len(sizes) > 1 else LONG_SENTENCE
    # A sentence of one line ends where the line ends.
    glued = [each for each in found if len(each.words) > most and each.locations[0] != each.locations[-1]]
    if glued:
        longest = max(glued, key=lambda sentence: len(sentence.words))
        what = f"a sentence of {len(longest.words):,} words starts here ({len(glued)} have more than {most:.0f})"
        note(on_event, f"{longest.locations[0]}: {what}: is a blank line between sentences missing?")
    on = [
        each.locations[stop]
        for each in found
        if (stop := _inner_stop(each)) and each.locations[0] != each.locations[-1]
    ]
    if len(on) > GOES_ON * len(found):
        go = "goes" if len(on) == 1 else "go"
        what = f"{len(on):,} of {counted(len(found), 'sentence')} {go} on after a full stop, the first one here"
        note(on_event, f"{on[0]}: {what}: is a blank line missing?")
    # Running text has one place for all its words, of which the longest will do.
    suspects = (each for each in found if each.words or len(each.text) > LONG_WORD)
    words = ((each.words or [max(WORD.findall(each.text), key=len, default="")], each.locations) for each in suspects)
    long = [pair for each in words for pair in zip(*each, strict=False) if len(pair[0]) > LONG_WORD]
    if long:
        word, place = long[0]
        what = f"a word of {len(word):,} characters ({counted(len(long), 'such word')}): only its start is read"
        note(on_event, f"{place}: {what}; is a separator missing?")


def _inner_stop(sentence: RawSentence) -> int:
    """Where a whole sentence seems to end with another one after it, or 0; 'Mr . Smith' does not end there."""
    words, tags = sentence.words, sentence.tags or []
    for place in range(2, len(tags) - 2):
        if words[place] in STOPS and tags[place] in (OUTSIDE, "PUNCT", ".") and words[-1] in STOPS:
            before, after = words[place - 1], words[place + 1]
            if after[0].isupper() and before[-1].isalnum() and not (len(before) < 4 and before.istitle()):
                return place
    return 0


def _items(source: Any, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    """The sentences of a list or a DataFrame."""
    items = source if hasattr(source, "columns") else list(source)
    if hasattr(items, "columns") or (items and all(isinstance(item, dict) for item in items)):
        yield from _records(items, "", columns, on_event)
        return
    for number, item in enumerate(items):
        place = f"item {number} of the list"
        match item:
            case str():
                yield RawSentence([], None, [place], item)
            case (list() | tuple()) as words, (list() | tuple()) as tags:
                yield make_sentence(list(words), list(tags), place)
            case list() | tuple() if all(isinstance(word, str) for word in item):
                yield make_sentence(list(item), None, place)
            case _:
                raise KeelError(f"{place} is {item!r:.60}: give a text, words, or (words, tags)")


def _records(source: Any, name: str, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    table = load_table(source, pair=False, named=[], encoding=columns.encoding, on_event=on_event)
    lowered = [column.lower() for column in table.columns]

    def find(asked: str, known: Sequence[str], flag: str) -> int | None:
        if asked:
            return table.column_index(asked, flag)
        return next((lowered.index(each) for each in known if each in lowered), None)

    words, tags = find(columns.text_column, WORDS, "text"), find(columns.label_column, TAGS, "label")
    if words is None:
        known = ", ".join(map(repr, table.columns))
        raise KeelError(f"{table.source} has no column of words: it has {known} (say which with --text-column)")
    for row, place in zip(zip(*table.cells, strict=True), table.locations, strict=True):
        if not all(isinstance(row[column], list | tuple) for column in (words, tags) if column is not None):
            raise KeelError(f"{place}: words and tags must be lists, such as {{'words': ['a'], 'tags': ['O']}}")
        yield make_sentence(list(row[words]), None if tags is None else list(row[tags]), place)


def _file(path: Path, name: str, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    read = _records if file_kind(path) in ("jsonl", "parquet") else read_tagged_lines
    return read(path, name, columns, on_event)
