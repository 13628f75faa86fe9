"""Templates and word lists about pronouns and occupations: our own in assets/bias, or a user's file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from keel.config import unknown_name
from keel.data.text_files import file_kind, open_text
from keel.errors import KeelError, UsageError
from keel.toml_files import read_toml

FOLDER = Path(__file__).parents[2] / "assets" / "bias"
BiasLanguage = Literal["en", "zh"]
MOST = 2_000
"""Occupations, templates or words in a list."""
PLACEHOLDER = re.compile(r"\{(\w*)\}")
MASKED = re.compile(r"\[mask\]", re.IGNORECASE)

Pair = tuple[str, str]


class FilledTemplate(NamedTuple):
    """A sentence, and the characters of each placeholder's word in it."""

    text: str
    spans: dict[str, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class BiasTemplates:
    """Sentences and words about pronouns and occupations."""

    pronouns: Pair
    neutral: str
    """The word in the place of an occupation whose log-odds are subtracted, for causal language models."""
    occupations: tuple[str, ...]
    sentences: tuple[str, ...]
    """Templates with {occupation} and {pronoun}."""
    attention_sentences: tuple[str, ...]
    """Templates with {first}, {second} and {pronoun}."""
    attention_pairs: tuple[Pair, ...]
    """Pairs of occupations; stereotypes connect the first one with the first pronoun."""
    gender_pairs: tuple[Pair, ...]
    """Pairs of words that differ in gender only."""
    word_sets: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    """Two sets of words by the name of an association test."""


def read_templates(language: BiasLanguage, file: str | Path | None = None) -> BiasTemplates:
    """Our templates in a language; a user's .toml file replaces the keys in it, another text file the sentences: lines
    with {occupation} or with {first} and {second}, and {pronoun} or [MASK]."""
    ours = _parse(read_toml(FOLDER / f"{language}.toml"), f"{language}.toml")
    known = BiasTemplates(**ours)
    if file is None:
        return known
    if Path(file).suffix.lower() == ".toml":
        return replace(known, **_parse(read_toml(file), str(file)))
    found: dict[str, list[str]] = {"sentences": [], "attention_sentences": []}
    for number, line in _lines(file):
        kind = "attention_sentences" if "{first}" in line else "sentences"
        found[kind].append(_sentence(line, kind, f"{file}:{number}"))
    return replace(known, **{kind: tuple(lines) for kind, lines in found.items() if lines})


def read_occupations(source: str | Path | Sequence[str]) -> tuple[str, ...]:
    """The occupations of a file, one per line, or of a list."""
    words = [line for _, line in _lines(source)] if isinstance(source, str | Path) else [*map(str, source)]
    found = tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
    if not found:
        raise KeelError("the list of occupations is empty: give one per line")
    return found


def parse_pair(text: str, what: str) -> Pair:
    """Two words with a colon between them."""
    parts = [part.strip() for part in re.split("[:：]", text)]
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise UsageError(f"{what}: {text!r:.60} is no pair of words: write two with a colon between them, as she:he")
    return parts[0], parts[1]


def fill_template(template: str, words: Mapping[str, str]) -> FilledTemplate:
    """The sentence of a template with words for its placeholders; it begins with a capital."""
    text, spans, end = "", {}, 0
    for match in PLACEHOLDER.finditer(template):
        text += template[end : match.start()]
        word = words[match[1]]
        spans[match[1]] = (len(text), len(text) + len(word))
        text += word
        end = match.end()
    text += template[end:]
    first = text[:1].upper()
    return FilledTemplate((first if len(first) == 1 else text[:1]) + text[1:], spans)


def _lines(file: str | Path) -> list[tuple[int, str]]:
    if file_kind(Path(file)) != "txt":
        raise UsageError(f"{file}: give a text file with one item per line")
    found = [(number, line.strip()) for number, line in open_text(file, "auto").numbered_lines(cut=True)]
    filled = [(number, line) for number, line in found if line]
    if not filled:
        raise KeelError(f"{file} is empty: give one item per line")
    if len(filled) > MOST:
        raise KeelError(f"{file} has {len(filled):,} lines: give {MOST:,} or fewer")
    return filled


def _parse(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of a file, checked."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        place = f"{where}: {key}"
        match key:
            case "pronouns":
                found[key] = parse_pair(_text(value, place), place)
            case "neutral":
                found[key] = _text(value, place)
            case "occupations":
                found[key] = read_occupations(_texts(value, place))
            case "sentences" | "attention_sentences":
                found[key] = tuple(_sentence(each, key, place) for each in _texts(value, place))
            case "attention_pairs" | "gender_pairs":
                found[key] = tuple(parse_pair(each, place) for each in _texts(value, place))
            case "word_sets":
                found[key] = _word_sets(value, place)
            case _:
                raise unknown_name(key, [each.name for each in fields(BiasTemplates)], where)
    return found


def _word_sets(value: Any, place: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    if not isinstance(value, dict):
        raise KeelError(f"{place} must be a table of names, each with two texts of words")
    found = {}
    for name, sets in value.items():
        parts = [tuple(each.split()) for each in _texts(sets, f"{place}.{name}")]
        if len(parts) != 2 or any(len(part) < 2 for part in parts) or {*parts[0]} & {*parts[1]}:
            raise KeelError(f"{place}.{name}: give two texts of different words, two words or more in each")
        found[name] = (parts[0], parts[1])
    return found


def _sentence(text: str, kind: str, place: str) -> str:
    """A template, if it has each of its placeholders once."""
    template = MASKED.sub("{pronoun}", text.strip())
    needed = ["first", "pronoun", "second"] if kind == "attention_sentences" else ["occupation", "pronoun"]
    if sorted(PLACEHOLDER.findall(template)) != needed:
        wanted = ", ".join(f"{{{name}}}" for name in needed)
        raise KeelError(f"{place}: {text!r:.80} must have each of {wanted} once")
    return template


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise KeelError(f"{place} must be a text")
    return value.strip()


def _texts(value: Any, place: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each.strip() for each in value):
        raise KeelError(f"{place} must be a list of texts")
    if len(value) > MOST:
        raise KeelError(f"{place} has {len(value):,} items: give {MOST:,} or fewer")
    return value
