"""Terms, such as names and phrases, found in text: from left to right, the longest that is there."""

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from keel.data.text_encodings import code_points
from keel.data.text_files import open_text
from keel.errors import KeelError

if TYPE_CHECKING:
    from keel.data.trie import Trie


class TermMatcher:
    """Searches texts for terms; a term of an alphabetic script is found at word bounds only."""

    def __init__(self, terms: Iterable[str], *, ignore_case: bool = False):
        self.terms = sorted({term for term in terms if term})
        self.ignore_case = ignore_case

    @classmethod
    def read(cls, path: str | Path, *, ignore_case: bool = False) -> Self:
        """Read a file with a term per line; what follows a tab, such as a type, is ignored."""
        matcher = cls((line.split("\t")[0].strip() for line in open_text(path).lines()), ignore_case=ignore_case)
        if not matcher.terms:
            raise KeelError(f"{path} lists nothing: write one name or phrase per line")
        return matcher

    def __len__(self) -> int:
        return len(self.terms)

    def fingerprint(self) -> str:
        """Hash of the terms and how they are compared."""
        content = "\n".join([str(self.ignore_case), *self.terms])
        return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def find(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """[found, 2] where terms start and end in the characters of all texts together, and [found] their numbers."""
        codes = code_points("".join(texts))
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        distinct, index = np.unique(codes, return_inverse=True)
        characters = [*map(chr, distinct.tolist())]
        alphabetic = np.array([_is_alphabetic(each) for each in characters], np.bool_)[index]
        if self.ignore_case:
            lower = [each.lower() for each in characters]
            distinct = np.array(
                [ord(low if len(low) == 1 else each) for low, each in zip(lower, characters, strict=True)]
            )
            codes = distinct[index]
        found = self._trie.find_longest(codes, sizes, alphabetic)
        return found[:, :2], found[:, 2]

    @cached_property
    def _trie(self) -> "Trie":
        from keel.data.trie import Trie  # imports Numba

        return Trie(self.terms, np.arange(len(self.terms), dtype=float))


def _is_alphabetic(character: str) -> bool:
    """Whether it belongs to a word that spaces or punctuation separate from others: not so in Chinese, Thai, Korean."""
    code = ord(character)
    return character.isalnum() and (code < 0x0E00 or 0x10A0 <= code < 0x1100 or 0x1E00 <= code < 0x2E80)
