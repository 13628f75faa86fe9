"""Keel's own sentences in the user's language: English as the source has them, Chinese by a gettext catalogue.

The source has plain f-strings. The catalogue has their templates, with {1}, {2}, ... for values; a finished sentence is
translated by the template that it matches, and each of its values in the same way: a value may be a sentence again.
Texts of users, --json, log files and names of flags are never translated.
"""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from keel.errors import UsageError

Language = Literal["en", "zh"]
CATALOGUES = Path(__file__).parent / "assets" / "locale"
VARIABLES = ("KEEL_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
"""Environment variables that name the language; the first one that is set decides."""
Kind = Literal["sentence", "value", "word"]
"""What is translated: a whole sentence, a value of one, or a value that is one of Keel's own words."""
VALUE = re.compile(r"\{(\d+)([#?]?)\}")
"""A value of a template: {1}, {1#} if it starts with a number, {1?} if it is one of Keel's own words."""
COUNTED = re.compile(r"(\d[\d,]*) (.+)", re.DOTALL)
SPEED = re.compile(r"([\d.]+[kM]?) (\w+)/s")
NAMED_NUMBER = re.compile(r"([A-Za-z][A-Za-z0-9 -]*?) ([-+]?\d[\w.,%+-]*)")
"""A score or a setting with its value: "accuracy 0.91", "lr 5.0e-04"."""
WORD = re.compile(r"[A-Za-z][a-z']+")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|«[^»]*»|“[^”]*”")
SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z\d])")
ITEM = r"(?:--\S+ )?\S+"
LIST = re.compile(rf"({ITEM}(?:, {ITEM})*),? (and|or) ({ITEM})")
LEADING_NAME = re.compile(r"(\S*[\d./'\"]\S*(?<![:;,])) (.+)", re.DOTALL)
"""A sentence that begins with the name of a file, a quoted word or a number."""
NAME = re.compile(r".*[\d'\"_.-].*")
"""A name of a list, not a word of a user's text: "bread and butter" is no list of names."""
CONJUNCTIONS = {"zh": {"and": "和", "or": "或", ",": "、"}}
JOINTS = {"; ": "；", ": ": "：", ", ": "，", " (": "（"}
"""What joins parts of a sentence, and how it is written in Chinese."""
SEVERAL = re.compile(r"[:;,] ")
"""A value of several parts: no single word has one, as in "layer {1}"."""
CERTAIN = re.compile(r"\d|--|\[")
"""How values begin that no text of users has beside a single word: "layer 3", "use --lr"."""
GAP = re.compile(r"( {2,})")
ENGLISH = re.compile(r"(?<![\w./<\[-])[a-z][a-z']+(?![\w.=(])")
MOST_PARTS = 30
"""Parts joined by punctuation that are translated one by one; a longer value is a list of data, such as columns."""
WORDS_OF_SENTENCE = 2
"""English words that are translated at least, or one beside a number; a shorter text of a page may be a user's."""
LONGEST = 5_000
"""Characters of a text that is compared with templates."""
ASCII_WORD = re.compile(r"[A-Za-z]+")
HAN = "\u3400-\u9fff"
WIDE_CHARACTER = re.compile(r"[\u2e80-\uffef]")
WIDE = rf"[{HAN}\u3000-\u303f\uff01-\uff65]"
"""A Chinese character or full-width punctuation."""
NO_SPACE = re.compile(rf"(?<={WIDE}) (?={WIDE})")
NEW_SPACE = re.compile(rf"(?<=[{HAN}])(?=[A-Za-z0-9'\"\[-])|(?<=[A-Za-z0-9'\"\]%)])(?=[{HAN}])")
"""Between Chinese and Latin characters, digits, flags and quoted names."""

_chosen: list[Language] = []


def language() -> Language:
    """The language of messages, reports and pages: that of `using_language`, or else of the environment."""
    if _chosen:
        return _chosen[-1]
    named = next(filter(None, map(os.environ.get, VARIABLES)), "")
    return "zh" if named.lower().startswith("zh") else "en"


@contextmanager
def using_language(name: str) -> Iterator[None]:
    """Set the language of messages, reports and pages; an empty name leaves it to the environment."""
    if name and name not in get_args(Language):
        raise UsageError(f"--lang {name}: choose {' or '.join(get_args(Language))}")
    _chosen.append(name or language())  # pyright: ignore[reportArgumentType] - checked above
    try:
        yield
    finally:
        _chosen.pop()


def translate(text: str, to: Language | None = None) -> str:
    """A sentence of Keel in another language, by default in that of `language`; unknown ones are returned unchanged."""
    wanted = to or language()
    return text if wanted == "en" or isinstance(text, Verbatim) else catalogue(wanted).translate(text)


def translate_sentence(text: str) -> str:
    """A text of a page that may be a user's: translated if most of it is a sentence of Keel."""
    shown = translate(text)
    before, left = english_words(text), english_words(shown)
    certain = before - left >= WORDS_OF_SENTENCE or (before > left and text[:1].isdigit())
    return shown if certain and 2 * left < before else text


def gettext_noop(text: str) -> str:
    """The text itself; adds a word to the catalogue that is translated where it is shown."""
    return text


def translated(texts: Iterable[str]) -> list[str]:
    """Several sentences or words of Keel, such as the head of a table, in the user's language."""
    return [translate(text) for text in texts]


@cache
def catalogue(name: Language) -> "Catalogue":
    return Catalogue(name, read_catalogue(CATALOGUES / f"{name}.po"))


class Verbatim(str):
    """A line with texts, words or labels of users, which is shown unchanged in every language."""

    __slots__ = ()


class MessageTemplate(NamedTuple):
    """A sentence with values, and its translation."""

    parts: tuple[str, ...]
    """The parts between values: a sentence without them, in this order, cannot match."""
    size: int
    """Characters beside the values: of several templates that match, the one with most is meant."""
    single: bool
    """Whether it has a single word beside the values, as in "layer {1}": a user's text may have this form too."""
    english: str
    translation: str

    @classmethod
    def of(cls, english: str, translation: str) -> "MessageTemplate":
        parts = VALUE.split(english)[::3]
        words = WORD.findall(" ".join(parts))
        return cls(tuple(parts), sum(map(len, parts)), len(words) < 2, english, translation)

    def may_match(self, text: str) -> bool:
        """Whether the text has all parts in their order: a regular expression would find it out slowly."""
        first, *middle, last = self.parts
        place = len(first)
        for part in middle:
            if (found := text.find(part, place)) < 0:
                return False
            place = found + len(part)
        return text.startswith(first) and text.endswith(last) and place + len(last) <= len(text)


@lru_cache(maxsize=512)
def _patterns(english: str) -> tuple[re.Pattern[str], ...]:
    """The sentences that a template stands for, with values as short and as long as possible; a value may be empty."""
    parts = VALUE.split(english)  # text, number, suffix, text, ...
    found: list[re.Pattern[str]] = []
    for repeat in ("*?", "*"):
        pattern = re.escape(parts[0])
        for suffix, before, after in zip(parts[2::3], parts[:-1:3], parts[3::3], strict=True):
            if suffix == "#":
                pattern += r"([-+]?\d[\d.,:%]*(?:e[-+]\d+)?(?: [^\d\W]+)*?)"
            elif not before and len(pattern) > 0:  # right after another value: a part that is joined to it, or none
                pattern += rf"((?:[;,:.]? ).{repeat}|)"
            else:
                pattern += f"(.{repeat})"
            pattern += re.escape(after)
        found.append(re.compile(pattern, re.DOTALL))
    return tuple(found)


class Catalogue:
    """Translations into one language, by English sentence or template."""

    def __init__(self, name: str, entries: Mapping[str, str]):
        self.name = name
        self._entries = {english: text for english, text in entries.items() if text and text != english}
        self._translate = lru_cache(maxsize=8192)(self._stripped)
        self.translate = partial(self._translate, kind="sentence")

    @cached_property
    def _templates(self) -> list[MessageTemplate]:
        """The longest first."""
        found = (MessageTemplate.of(*entry) for entry in self._entries.items() if VALUE.search(entry[0]))
        return sorted(found, key=lambda each: -each.size)

    @cached_property
    def _by_word(self) -> dict[str, list[int]]:
        """Places of templates in `_templates` by the rarest word that all their sentences have, or by no word."""
        words = [whole_words(each.english) for each in self._templates]
        counts = Counter(word for each in words for word in each)
        found: dict[str, list[int]] = defaultdict(list)
        for place, each in enumerate(words):
            found[min(each, key=lambda word: (counts[word], word), default="")].append(place)
        return found

    def _candidates(self, text: str) -> Iterator[MessageTemplate]:
        """Templates that may match, the longest first; comparing with all of them would take milliseconds."""
        words = {"", *ASCII_WORD.findall(text)}
        for place in sorted(place for word in words for place in self._by_word.get(word, ())):
            if (template := self._templates[place]).may_match(text):
                yield template

    def _entry(self, text: str) -> str:
        """The translation of a sentence without values; of one that starts a line, also if its entry has no capital."""
        forms = (text, text[:1].lower() + text[1:], f"{text}.") if " " in text else (text,)
        return next(filter(None, map(self._entries.get, forms)), "").removesuffix("" if text.endswith(".") else "。")

    def _stripped(self, text: str, kind: Kind) -> str:
        bare = text.strip()
        return text.replace(bare, self._sentence(bare, kind), 1) if bare else text

    def _sentence(self, text: str, kind: Kind) -> str:
        if (kind != "value" or " " in text) and (
            found := self._entry(text)
        ):  # a word may be a user's, such as a column
            return found
        if QUOTED.fullmatch(text):
            return text
        if len(text) > LONGEST:
            return "\n".join(self._translate(line, kind) for line in text.split("\n")) if "\n" in text else text
        best, least = text, english_words(text)
        for reading in self._readings(text, kind) if least else ():
            if (left := english_words(reading)) < least:
                best, least = reading, left
            if not left:
                break
        return best

    def _readings(self, text: str, kind: Kind) -> Iterator[str]:
        """The ways to read a text as sentences of Keel, translated: by a template, or as several that are joined."""
        several_lines = "\n" in text
        if len(cells := GAP.split(text)) > 1:
            yield with_gaps([self._translate(cell, "value") for cell in cells[::2]], cells)
        late: list[str] = []
        for each in self._candidates(text):
            if not several_lines or "\n" in each.english:
                for reading, several in self._filled(each, text, kind):
                    if several:
                        late.append(reading)
                    else:
                        yield reading
        if several_lines:
            yield "\n".join(self._translate(line, kind) for line in text.split("\n"))
        if len(parts := SENTENCE_END.split(text)) > 1:
            yield joined_sentences([self._translate(part, kind) for part in parts], parts)
        if (counted := COUNTED.fullmatch(text)) and (noun := self._entries.get(counted[2])):
            yield f"{counted[1]} {noun}"
        if (speed := SPEED.fullmatch(text)) and (noun := self._entries.get(speed[2])):
            yield f"{speed[1]} {noun}/秒"
        if (named := NAMED_NUMBER.fullmatch(text)) and kind == "value" and (noun := self._entries.get(named[1])):
            yield f"{noun} {named[2]}"
        if text.endswith(".") and (shown := self._translate(text[:-1], kind)) != text[:-1]:
            yield f"{shown}。"
        yield from self._joined(text, kind)
        yield from late

    def _filled(self, template: MessageTemplate, text: str, kind: Kind) -> Iterator[tuple[str, bool]]:
        """The translations if the text has the form of the template, for each way to cut it into values, and whether a
        value has several parts: more likely, the template is one part of the sentence."""
        for pattern in _patterns(template.english):
            if not (found := pattern.fullmatch(text)):
                continue
            values = found.groups()
            certain = any(map(CERTAIN.match, values)) or any(map(QUOTED.fullmatch, values))
            numbered = VALUE.findall(template.english)
            certain |= any(
                suffix == "?" and self._entry(value) for (_, suffix), value in zip(numbered, values, strict=True)
            )
            several = any(SEVERAL.search(value) and not self._entry(value) for value in values)
            if template.single and (several or (kind == "value" and not certain)):
                continue
            new: dict[str, str] = {}
            changed: set[str] = set()
            for value, (number, suffix) in zip(values, numbered, strict=True):
                new[number] = self._translate(value, "word" if suffix == "?" else "value")
                changed |= {number} if new[number] != value else set()
            yield with_values(template.translation, new, changed), any(map(SEVERAL.search, values))

    def _joined(self, text: str, kind: Kind) -> Iterator[str]:
        """Sentences and names that are joined by punctuation or conjunctions."""
        words = CONJUNCTIONS[self.name]
        if (listed := LIST.fullmatch(text)) and kind != "sentence":
            names = [*listed[1].split(", "), listed[3]]
            if names[2:] or all(map(NAME.fullmatch, names)):
                yield f"{words[','].join(names[:-1])} {words[listed[2]]} {names[-1]}"
        if (named := LEADING_NAME.fullmatch(text)) and (rest := self._translate(named[2], "value")) != named[2]:
            yield f"{named[1]} {rest}"
        if sum(map(text.count, JOINTS)) >= MOST_PARTS:
            return
        quoted = [each.span() for each in QUOTED.finditer(text)]
        for joint, new in JOINTS.items():
            starts = (each.start() for each in re.finditer(re.escape(joint), text))
            cut = next((each for each in starts if not any(start < each < stop for start, stop in quoted)), 0)
            if not cut:
                continue
            first, rest = text[:cut], text[cut + len(joint) :]
            shown = self._translate(first, "value")
            with_joint = self._translate((joint + rest).strip(), "value")
            if re.match(WIDE, with_joint):  # a part that begins with the joint
                yield with_values("{1}{2}", {"1": shown, "2": with_joint}, "12")
            end = ")" if joint == " (" and rest.endswith(")") else ""
            other = self._translate(rest.removesuffix(end), "value")
            if shown != first or other != rest.removesuffix(end):
                yield shown + (new + other + (end and "）") if other != rest else joint + rest)
        if text.endswith(")") and (cut := text.rfind(" (")) > text.find(" ("):
            shown, other = self._translate(text[:cut], "value"), self._translate(text[cut + 2 : -1], "value")
            yield f"{shown}（{other}）"


def english_words(text: str) -> int:
    """The number of English words of a sentence that are no names, flags or quoted texts: it is to have few of them."""
    return len(ENGLISH.findall(QUOTED.sub(" ", text)))


def with_gaps(cells: Sequence[str], old: Sequence[str]) -> str:
    """The cells of a line of a table; gaps keep the columns of a terminal where the cells leave room."""
    line, end = "", 0
    for new, cell, gap in zip(cells, old[::2], (*old[1::2], ""), strict=True):
        line += new
        end += columns_of(cell) + len(gap)
        line += " " * max(2, end - columns_of(line)) if gap else ""
    return line


def joined_sentences(new: Sequence[str], old: Sequence[str]) -> str:
    """Sentences, with a space where one of two neighbours is not Chinese."""
    line = new[0]
    for before, after, was in zip(new, new[1:], old[1:], strict=False):
        line += after if after != was and before not in old else f" {after}"
    return line


def columns_of(text: str) -> int:
    """The columns that a text takes on a terminal."""
    return len(text) + len(WIDE_CHARACTER.findall(text))


def whole_words(english: str) -> set[str]:
    """The words of a template that no value touches: every sentence that matches has them as words too."""
    parts = VALUE.sub("\0", english)
    return {found[0] for found in ASCII_WORD.finditer(parts) if "\0" not in parts[found.start() - 1 : found.start()]
            and parts[found.end() : found.end() + 1] != "\0"}  # fmt: skip


def with_values(translation: str, values: Mapping[str, str], translated: Collection[str]) -> str:
    """A translated template with its values: a space between Chinese and Latin characters, none within Chinese.

    A value that is not translated, such as a Chinese file name, keeps the spaces around it.
    """
    text, *rest = VALUE.split(translation)
    changed = False
    for number, after in zip(rest[::3], rest[2::3], strict=True):
        for part, fresh in ((values[number], number in translated), (after, changed)):
            if not part:
                continue
            if fresh and NO_SPACE.search(text[-2:] + part[:2]):
                text, part = text.rstrip(" "), part.lstrip(" ")
            elif NEW_SPACE.search(text[-1:] + part[:1]):
                text += " "
            text += part
        changed = number in translated
    return text


def read_catalogue(path: Path) -> dict[str, str]:
    """The entries of a .po file, by the English sentence; untranslated ones are empty."""
    entries: dict[str, str] = {}
    key, english, text = "", "", ""
    for line in [*path.read_text(encoding="utf-8").splitlines(), "msgid end"]:
        name, _, value = line.partition(" ")
        if name == "msgid":
            if english:
                entries[english] = text
            key, english, text = name, "", ""
        elif name == "msgstr":
            key = name
        elif not line.startswith('"'):
            continue
        quoted = value if name.startswith("msg") else line
        part = json.loads(quoted) if quoted.startswith('"') else ""
        if key == "msgid":
            english += part
        else:
            text += part
    return entries
