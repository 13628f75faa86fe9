"""A corpus of several languages: their names before files, and how often each is sampled."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keel.errors import UsageError

NAMED = re.compile(r"([a-z]{2,3}(?:-[A-Za-z0-9]{2,8})*):(.+)", re.DOTALL)
"""A language code (ISO 639, perhaps with a script or region: zh, yue, zh-Hant), a colon and a file."""
SMOOTHING = 0.7
"""Exponent of multilingual BERT."""
CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")


def split_language(name: str) -> tuple[str, str]:
    """Language and file of a name such as `de:multi_de.txt.xz`; the language is empty where none is named.

    The name of an existing file never has a language, and one character before a colon is a Windows drive.
    """
    found = NAMED.fullmatch(name)
    return ("", name) if found is None or os.path.exists(name) else (found[1], found[2])


def sources_by_language(source: Any, text_column: str = "text") -> dict[str, Any]:
    """The source of each language in a dict such as {"de": "multi_de.txt"}, or in names such as `de:multi_de.txt`;
    empty for a source without languages, such as a dict of columns with a `text_column`."""
    if isinstance(source, Mapping):
        named = {str(language): each for language, each in source.items()}
        return named if named and all(map(CODE.fullmatch, named)) and text_column not in named else {}
    items = [source] if isinstance(source, str | Path) else source
    if not isinstance(items, list | tuple) or not all(isinstance(item, Path) or item is source for item in items):
        return {}
    found: dict[str, list[Path]] = {}
    for item in items:
        language, file = split_language(str(item))
        found.setdefault(language, []).append(Path(file))
    if "" in found and len(found) > 1:
        name = str(found[""][0])
        before, _, file = name.partition(":")
        if file and not os.path.exists(name) and os.path.exists(file):
            remedy = "write two or three lowercase letters, such as de or zh-Hant"
            raise UsageError(f"{name}: {before!r} is no language code: {remedy}")
        remedy = "write all files as en:FILE, or none"
        raise UsageError(f"{name} has no language before it, and other files have: {remedy}")
    return {} if "" in found else dict(found)


def only_file(language: str, source: Any) -> Any:
    """A labelled dataset of a language: one file, or examples in memory."""
    if not isinstance(source, list) or not all(isinstance(item, Path) for item in source):
        return source
    if len(source) > 1:
        raise UsageError(f"{source[1]} is a second file of {language!r}: give one labelled file per language")
    return source[0]


def smoothed_shares(sizes: Sequence[float], smoothing: float) -> np.ndarray:
    """Share of each language among the samples: P(L) = size(L)^s / sum of size(L')^s, as in multilingual BERT."""
    powers = np.asarray(sizes, np.float64) ** smoothing
    return powers / powers.sum()


def describe_shares(shares: Mapping[str, float]) -> str:
    """The share of each language: "en 49.3%, de 7.2%"."""
    return ", ".join(f"{language} {share:.1%}" for language, share in shares.items())


def repeats_per_epoch(sizes: Sequence[float], smoothing: float) -> np.ndarray:
    """How often the text of each language is read in an epoch, which reads the one that is repeated least once."""
    rates = smoothed_shares(sizes, smoothing) / np.asarray(sizes, np.float64)
    return rates / rates.min()
