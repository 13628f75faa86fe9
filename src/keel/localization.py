"""Keel's own sentences in the user's language: English as the source has them, Chinese by a gettext catalogue.

The source has plain f-strings. The catalogue has their templates, with {1}, {2}, ... for values; a finished sentence is
translated by the template that it matches, and each of its values in the same way: a value may be a sentence again.
Texts of users, --json, log files and names of flags are never translated.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
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
WORD = re.compile(r"[A-Za-z][a-z']+")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|«[^»]*»|“[^”]*”")
SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z\d])")
LIST = re.compile(r"\S+(?:, \S+)*,? (?:and|or) \S+")
CONJUNCTIONS = {"zh": {"and": "和", "or": "或", ",": "、"}}

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
    return text if wanted == "en" else catalogue(wanted).translate(text)


def gettext_noop(text: str) -> str:
    """The text itself; adds a word to the catalogue that is translated where it is shown."""
    return text


def translated(texts: Iterable[str]) -> list[str]:
    """Several sentences or words of Keel, such as the head of a table, in the user's language."""
    return [translate(text) for text in texts]


@cache
def catalogue(name: Language) -> "Catalogue":
    return Catalogue(name, read_catalogue(CATALOGUES / f"{name}.po"))


class MessageTemplate(NamedTuple):
    """A sentence with values, and its translation."""

    longest: str
    """The longest part between values: a sentence without it cannot match."""
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
        return cls(max(parts, key=len), sum(map(len, parts)), len(words) < 2, english, translation)


@lru_cache(maxsize=512)
def _patterns(english: str) -> tuple[re.Pattern[str], ...]:
    """The sentences that a template stands for, with values as short and as long as possible; a value may be empty."""
    parts = VALUE.split(english)  # text, number, suffix, text, ...
    found: list[re.Pattern[str]] = []
    for repeat in ("*?", "*"):
        pattern = re.escape(parts[0])
        for suffix, before, after in zip(parts[2::3], parts[:-1:3], parts[3::3], strict=True):
            if suffix == "#":
                pattern += r"([-+]?\d[\d.,%]*(?: [^\d\W]+)*?)"
            elif not before and len(pattern) > 0:  # right after another value: a part that is joined to it, or none
                pattern += rf"((?:[;,:.] | \().{repeat}|)"
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
        self.translate = lru_cache(maxsize=4096)(partial(self._translate, kind="sentence"))

    @cached_property
    def _templates(self) -> list[MessageTemplate]:
        """The longest first."""
        found = (MessageTemplate.of(*entry) for entry in self._entries.items() if VALUE.search(entry[0]))
        return sorted(found, key=lambda each: -each.size)

    def _translate(self, text: str, kind: Kind) -> str:
        bare = text.strip()
        return text.replace(bare, self._sentence(bare, kind), 1) if bare else text

    def _sentence(self, text: str, kind: Kind) -> str:
        if text in self._entries and (
            kind != "value" or " " in text
        ):  # a single word may be a user's, such as a column
            return self._entries[text]
        if QUOTED.fullmatch(text):
            return text
        parts = SENTENCE_END.split(text)
        several = [self._translate(part, kind) for part in parts] if parts[1:] else []
        if several and not any(new == old for new, old in zip(several, parts, strict=True)):
            return "".join(several)
        several_lines = "\n" in text
        for each in self._templates:
            if several_lines and "\n" not in each.english:
                continue
            if each.longest in text and (filled := self._filled(each, text, kind)):
                return filled
        if several_lines:
            return "\n".join(self._translate(line, kind) for line in text.split("\n"))
        if (counted := COUNTED.fullmatch(text)) and (noun := self._entries.get(counted[2])):
            return f"{counted[1]} {noun}"
        return self._joined(text)

    def _filled(self, template: MessageTemplate, text: str, kind: Kind) -> str:
        """The translation if the text has the form of the template, else nothing; of two ways to cut it into values,
        the one that leaves fewer of them untranslated."""
        best: tuple[int, dict[str, str]] | None = None
        for pattern in _patterns(template.english):
            if not (found := pattern.fullmatch(text)):
                continue
            values = found.groups()
            certain = any(value[:1].isdigit() or QUOTED.fullmatch(value) for value in values)
            if template.single and kind == "value" and not certain:
                continue
            new: dict[str, str] = {}
            for value, (number, suffix) in zip(values, VALUE.findall(template.english), strict=True):
                new[number] = self._translate(value, "word" if suffix == "?" else "value")
            changed = sum(one != two for one, two in zip(new.values(), values, strict=True))
            if best is None or changed > best[0]:
                best = changed, new
        if best is None:
            return ""
        values_by_number = best[1]
        return VALUE.sub(lambda each: values_by_number[each[1]], template.translation)

    def _joined(self, text: str) -> str:
        """Sentences and names that are joined by punctuation or conjunctions."""
        words = CONJUNCTIONS[self.name]
        if LIST.fullmatch(text):
            *names, joint, last = text.split(" ")
            return f"{words[','].join(name.rstrip(',') for name in names)} {words[joint]} {last}"
        quoted = [each.span() for each in QUOTED.finditer(text)]
        for joint, new in (("; ", "；"), (": ", ": "), (", ", "，"), (" (", " (")):
            starts = (each.start() for each in re.finditer(re.escape(joint), text))
            cut = next((each for each in starts if not any(start < each < stop for start, stop in quoted)), 0)
            if not cut:
                continue
            first, rest = text[:cut], text[cut + len(joint) :]
            both = self._translate(first, "value"), self._translate(rest, "value")
            with_joint = self._translate((joint + rest).strip(), "value")
            if not with_joint.endswith(rest):  # a part that begins with the joint
                return f"{both[0]} {with_joint}" if joint.startswith(" ") else both[0] + with_joint
            if both != (first, rest):
                return both[0] + (new if both[0] != first else joint) + both[1]
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
