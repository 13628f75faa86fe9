"""A figure: a picture with its title, its caption and the numbers in it."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element

from keel.data.tagged_sentences import split_words
from keel.errors import UsageError
from keel.localization import Verbatim, translate
from keel.nn.meta_device import count_parameters
from keel.systems.system import System
from keel.text_table import COLUMNS, TextLines, aligned_lines, cut_characters, translated_lines

MAX_WORDS = 16
"""Words of a text that a figure of a network has room for."""
WORD_LENGTH = 18
"""Characters of a word that such a figure shows."""


@dataclass(frozen=True, kw_only=True)
class Figure(TextLines):
    """A diagram; `numbers` are those of the configuration that it shows, by name."""

    title: str
    caption: str
    picture: Element = field(repr=False)
    numbers: Mapping[str, Any]
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further data for programs, such as all tokens."""

    def __repr__(self) -> str:
        return f"Figure({self.title!r})"

    def lines(self) -> list[str]:
        rows = [(translate(name), _shown(value)) for name, value in self.numbers.items()]
        table = list(aligned_lines(rows, left=2)) if rows else []
        wrapped = [part for line in table for part in textwrap.wrap(line, COLUMNS, subsequent_indent="    ")]
        return [self.title, "", *map(Verbatim, wrapped), "", *translated_lines(self.caption)]

    def to_dict(self) -> dict[str, Any]:
        return {"title": self.title, "caption": self.caption, "numbers": dict(self.numbers), **self.details}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def figure_words(text: str, default: Sequence[str]) -> list[str]:
    """The words of a text that a network is shown with; long ones are cut."""
    if not text:
        return list(default)
    words = split_words(text, chinese_words=True)
    if not 2 <= len(words) <= MAX_WORDS:
        raise UsageError(f"text must have 2 to {MAX_WORDS} words, not {len(words)}: give another one")
    return [*map(cut_word, words)]


def cut_word(word: str) -> str:
    """A word, or its beginning where it is too long for a figure."""
    return cut_characters(word, WORD_LENGTH)


def encoder_parameters(system: System, vocab_size: int) -> int:
    """Parameters of a new encoder of this system."""
    return count_parameters(lambda: system.build_encoder(vocab_size))


def millions(parameters: int) -> str:
    """A number of parameters in a few digits."""
    if parameters >= 10**9:
        return f"{parameters / 1e9:,.1f}B"
    return f"{parameters / 1e6:,.1f}M" if parameters >= 10**5 else f"{parameters:,}"
