"""Sentences of tagged words from files, lists or tables, checked and converted to one tagging scheme."""

import re
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from keel.data.column_names import TEXTS
from keel.data.examples import Example, Examples
from keel.data.label_kinds import TagLabels
from keel.data.memory_sources import Frame, is_records, plain_source, source_items
from keel.data.row_errors import row_error
from keel.data.sentence_splitting import CHINESE, CJK, LONG_WORD
from keel.data.table_sources import load_table, named_file, refuse_two_files
from keel.data.tables import DEFAULT_COLUMNS, Columns, choose_columns
from keel.data.tag_schemes import (
    FOREIGN,
    OUTSIDE,
    PREFIXES,
    Scheme,
    complete_tags,
    detect_scheme,
    extract_entities,
    has_few_foreign_prefixes,
    has_few_other_tags,
    invalid_transitions,
    is_entity_tag,
    write_tags,
)
from keel.data.tagged_files import RawSentence, make_sentence, read_tagged_lines
from keel.data.text_files import file_kind
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note, pluralize

WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags", "pos_tags", "labels", "ner", "pos", "upos", "gold")
"""Usual names of the fields of a record."""
SENTENCE_ENDS = (".", "!", "?")
LONG_SENTENCE = 400
INNER_STOPS = 1e-3
"""Share of sentences with an inner full stop in clean files; Chinese is not checked, where it is common."""
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+(?:[-'’.][^\W{CJK}]+)*|[^\w\s]|_")


def read_tagged_sentences(source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
    """Read a file, `-`, a list of texts, of words or of (words, tags), dicts or a DataFrame.

    Entity tags are checked and converted to one scheme; invalid ones are interpreted as conlleval does, with a note.
    """
    if isinstance(source, Examples):
        return source
    refuse_two_files(source)
    if isinstance(source, str | Path):
        with named_file(source) as (path, name):
            records = file_kind(path) in ("jsonl", "parquet")
            read = _records(path, columns, on_event) if records else read_tagged_lines(path, name, columns, on_event)
            found = list(read)
    else:
        name, found = "the list", list(_items(source, columns, on_event))
    if not found:
        expected = "give a word and its tag per line, sentences separated by blank lines"
        raise KeelError(f"{name} has no sentences: {expected}")
    _report_suspicious(found, on_event)
    untagged = [sentence for sentence in found if sentence.tags is None]
    if len(untagged) == len(found):
        return Examples.of([_example(sentence, None) for sentence in found], None, name)
    if untagged:
        what = "this sentence has no tags, though others have"
        for sentence in untagged:
            row_error(KeelError(f"{sentence.locations[0]}: {what}: tag it or drop it"))
        found = [sentence for sentence in found if sentence.tags is not None]
    tags = [sentence.tags or [] for sentence in found]
    scheme = detect_scheme(tags)
    _refuse_stray_tags(found, tags, scheme, columns)
    target = _target_scheme(tags, scheme, columns, name, on_event)
    if scheme != "none":
        _report_invalid(found, tags, scheme, on_event)
    converted = [_convert_tags(each, scheme, target) for each in tags]
    names = complete_tags((tag for each in converted for tag in each), target)
    return Examples.of(list(map(_example, found, converted)), TagLabels(), name, tuple(sorted(names)))


def split_words(text: str, *, chinese_words: bool = False) -> list[str]:
    """The words and punctuation of a text; Chinese by characters, or in words by jieba."""
    if not chinese_words or not CHINESE.search(text):
        return WORD.findall(text)
    from keel.data.chinese_words import chinese_word_starts  # imports Numba

    edges = [*sorted(chinese_word_starts(text)), len(text)]
    parts = [text[start:end] for start, end in pairwise(edges)]
    return [word for part in parts for word in ([part] if CHINESE.match(part) else WORD.findall(part))]


def _example(sentence: RawSentence, tags: Sequence[str] | None) -> Example:
    words = tuple(sentence.words)
    separator = "" if all(len(word) == 1 for word in words) and any(map(CHINESE.match, words)) else " "
    label = None if tags is None else tuple(tags)
    return Example(sentence.text or separator.join(words), None, label, sentence.locations[0], words)


def _refuse_stray_tags(found: list[RawSentence], tags: list[list[str]], scheme: Scheme, columns: Columns) -> None:
    """Refuse a few tags of no scheme, which would make all tags plain, or of BIOES, which would make BIO invalid."""
    error, what, remedy = KeelError, "", "correct it"
    if scheme != "none":
        if has_few_foreign_prefixes(tags):
            what = "is not a BIO tag, though most others are"
    elif has_few_other_tags(tags):
        others = detect_scheme([tag for tag in each if is_entity_tag(tag)] for each in tags)
        what = f"is not a {others.removesuffix('1')} tag, though most others are"
    elif columns.scheme != "auto":
        error, what = UsageError, f"is not an entity tag and cannot be converted to {columns.scheme}"
        remedy = "correct it, or leave out --scheme"
    for sentence in found if what else []:
        for tag, location in zip(sentence.tags or [], sentence.locations, strict=True):
            if not is_entity_tag(tag) if scheme == "none" else tag[0] in FOREIGN:
                raise error(f"{location}: {tag!r} {what}: {remedy}")


def _target_scheme(tags: list[list[str]], scheme: Scheme, columns: Columns, name: str, on_event: OnEvent) -> Scheme:
    if scheme == "none":
        if columns.scheme != "auto":
            what = f"its tags are not entity tags and cannot be converted to {columns.scheme}"
            raise UsageError(f"{name}: {what}: leave out --scheme")
        return scheme
    target = columns.scheme if columns.scheme != "auto" else "BIO" if scheme == "BIO1" else scheme
    known = f"{scheme} (B only between adjacent entities of one type)" if scheme == "BIO1" else scheme
    if others := {tag.partition("-")[0] for each in tags for tag in each} - {OUTSIDE, *PREFIXES[scheme]}:
        known = f"{scheme} with other prefixes ({', '.join(sorted(others))})"
    if target != scheme or others:
        note(on_event, f"{name}: tags are {known}, converted to {target}")
    return target


def _convert_tags(tags: Sequence[str], scheme: Scheme, target: Scheme) -> Sequence[str]:
    # BILOU and BMEWO are BIOES and BMES with other prefixes.
    known = scheme == target and {*tags} <= complete_tags(tags, target)
    if known and not any(True for _ in invalid_transitions(tags, scheme)):
        return tags
    return write_tags(extract_entities(tags), len(tags), target)


def _report_invalid(found: list[RawSentence], tags: list[list[str]], scheme: Scheme, on_event: OnEvent) -> None:
    invalid = [(number, index) for number, each in enumerate(tags) for index in invalid_transitions(each, scheme)]
    if not invalid:
        return
    number, index = invalid[0]
    here, locations = tags[number], found[number].locations
    if index == len(here):
        what = f"{here[-1]!r} at the end of the sentence"
    else:
        what = f"{here[index]!r} {f'after {here[index - 1]!r}' if index else 'at the start of the sentence'}"
    count = f"{pluralize(len(invalid), 'invalid tag')} in {scheme}, such as {what}"
    remedy = "read as conlleval does, an entity starts or ends there: correct the tags if that is wrong"
    note(on_event, f"{locations[min(index, len(here) - 1)]}: {count}; {remedy}")


def _report_suspicious(found: list[RawSentence], on_event: OnEvent) -> None:
    """Notes about sentences that look wrong but can be read."""
    sizes = [len(sentence.words) for sentence in found]
    most = min(LONG_SENTENCE, max(100.0, 20 * statistics.median(sizes))) if len(sizes) > 1 else LONG_SENTENCE
    # A sentence on one line ends with the line.
    joined = [each for each in found if len(each.words) > most and each.locations[0] != each.locations[-1]]
    if joined:
        longest = max(joined, key=lambda sentence: len(sentence.words))
        what = f"a sentence of {len(longest.words):,} words starts here ({len(joined)} have more than {most:.0f})"
        note(on_event, f"{longest.locations[0]}: {what}: is a blank line between sentences missing?")
    inner = [(each, stop) for each in found if (stop := _inner_stop(each)) and each.locations[0] != each.locations[-1]]
    if len(inner) > INNER_STOPS * len(found):
        (sentence, stop), have = inner[0], "has" if len(inner) == 1 else "have"
        what = f"{len(inner):,} of {pluralize(len(found), 'sentence')} {have} words after a full stop, first here"
        note(on_event, f"{sentence.locations[stop]}: {what}: is a blank line missing?")
    # Running text has one location for all its words: its longest word suffices.
    suspects = (each for each in found if each.words or len(each.text) > LONG_WORD)
    words = ((each.words or [max(WORD.findall(each.text), key=len, default="")], each.locations) for each in suspects)
    long = [pair for each in words for pair in zip(*each, strict=False) if len(pair[0]) > LONG_WORD]
    if long:
        word, location = long[0]
        what = f"a word of {len(word):,} characters ({pluralize(len(long), 'such word')}): only its start is used"
        note(on_event, f"{location}: {what}; is a separator missing?")


def _inner_stop(sentence: RawSentence) -> int:
    """Index of a full stop that seems to end a sentence before another one, or 0; 'Mr . Smith' has none."""
    words, tags = sentence.words, sentence.tags or []
    for index in range(2, len(tags) - 2):
        if words[index] in SENTENCE_ENDS and tags[index] in (OUTSIDE, "PUNCT", ".") and words[-1] in SENTENCE_ENDS:
            before, after = words[index - 1], words[index + 1]
            if after[0].isupper() and before[-1].isalnum() and not (len(before) < 4 and before.istitle()):
                return index
    return 0


def _items(source: Any, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    """The sentences of a list or a DataFrame."""
    source = plain_source(source)
    if isinstance(source, Frame) or is_records(items := source_items(source)):
        yield from _records(source, columns, on_event)
        return
    for number, item in enumerate(items):
        location = f"item {number} of the list"
        match item:
            case str():
                yield RawSentence([], None, [location], item)
            case (list() | tuple()) as words, (list() | tuple()) as tags:
                yield make_sentence(list(words), list(tags), location)
            case list() | tuple() if all(isinstance(word, str) for word in item):
                yield make_sentence(list(item), None, location)
            case _:
                raise KeelError(f"{location} is {item!r:.60}: give a text, words, or (words, tags)")


def words_or_texts(source: Any, columns: Columns) -> list[Any]:
    """The words or the text of each row of a table, a record or a list of records, without tags."""
    table = load_table(source, columns, ignore, pair=False)
    lowered = [column.lower() for column in table.columns]
    known = next((name for name in (*WORDS, *TEXTS) if name in lowered), "")
    if known and not columns.text_column:
        return table.cells[lowered.index(known)]
    return table.cells[choose_columns(table, columns, pair=False)[0]] if len(table) else []


def _records(source: Any, columns: Columns, on_event: OnEvent) -> Iterator[RawSentence]:
    table = load_table(source, columns, on_event, pair=False)
    lowered = [column.lower() for column in table.columns]

    def find(named: str, known: Sequence[str], flag: str) -> int | None:
        if named:
            return table.column_index(named, flag)
        return next((lowered.index(each) for each in known if each in lowered), None)

    words, tags = find(columns.text_column, WORDS, "text"), find(columns.label_column, TAGS, "label")
    if words is None:
        what = f"{table.source} has no column of words: it has {table.column_list}"
        raise KeelError(f"{what} (choose with --text-column)")
    for row, location in zip(zip(*table.cells, strict=True), table.locations, strict=True):
        if not all(isinstance(row[column], list | tuple) for column in (words, tags) if column is not None):
            raise KeelError(f"{location}: words and tags must be lists, such as {{'words': ['a'], 'tags': ['O']}}")
        yield make_sentence(list(row[words]), None if tags is None else list(row[tags]), location)
