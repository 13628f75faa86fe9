"""Units of text that ERNIE masks as a whole, at three levels: words, phrases and entities (Sun et al., 2019).

A unit of a level is a run of tokens. Phrases join words; entities are laid over both, so one may also begin or end
inside a word. The code of a token has a bit for each level: whether a unit of that level starts there.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from keel.data.term_matcher import TermMatcher
from keel.data.token_offsets import TokenOffsets
from keel.data.tokenizer import Tokenizer

LEVELS = ("word", "phrase", "entity")
"""Names of the levels; bit n of a code tells where units of the n-th level start."""
FORMAT = 1
"""Version of the rules by which units are found."""


class EntityTagger(Protocol):
    """A model that finds the entities of texts."""

    def find_entities(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Per text, where its entities start and end, in characters, in order."""
        ...

    def fingerprint(self) -> str:
        """Hash of the model."""
        ...


@dataclass(frozen=True)
class EncodedUnits:
    """The units of some texts."""

    codes: np.ndarray
    """[tokens] uint8: the levels of which a unit starts at each token, as bits."""
    names: np.ndarray
    """Numbers of the listed entities that occur."""


@dataclass(frozen=True, kw_only=True)
class MaskingUnits:
    """How units are found: words by jieba or whitespace, phrases by a list, entities by a list and a tagging model."""

    phrases: TermMatcher | None = None
    entities: TermMatcher | None = None
    tagger: EntityTagger | None = None

    def fingerprint(self) -> str:
        """Hash of everything that determines the units of a text."""
        parts = [part.fingerprint() if part else "" for part in (self.phrases, self.entities, self.tagger)]
        return hashlib.blake2b(repr((FORMAT, *parts)).encode(), digest_size=16).hexdigest()

    def encode(self, tokenizer: Tokenizer, texts: list[str]) -> EncodedUnits:
        """The units of texts, for the tokens that `tokenizer.encode_flat` gives."""
        tokens = TokenOffsets(texts, tokenizer.encode_with_offsets(texts))
        words = tokens.word_starts()
        phrases, spans, names = words, np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
        if self.phrases:
            phrases = _join(words, _spans_of_tokens(tokens, _between_words(tokens, words, self.phrases.find(texts)[0])))
        if self.entities:
            spans, names = self.entities.find(texts)
        if self.tagger:
            spans = _with_others(spans, _whole_spans(tokens, self.tagger.find_entities(texts)))
        entities = _overlay(phrases, _spans_of_tokens(tokens, spans))
        bits = [starts.astype(np.uint8) << level for level, starts in enumerate((words, phrases, entities))]
        return EncodedUnits(bits[0] | bits[1] | bits[2], np.unique(names))


def _whole_spans(tokens: TokenOffsets, found: list[list[tuple[int, int]]]) -> np.ndarray:
    """[spans, 2] spans of each text, as positions in the characters of all texts together."""
    begins = tokens.text_starts.tolist()
    spans = [(start + begin, end + begin) for each, begin in zip(found, begins, strict=False) for start, end in each]
    return np.array(spans, np.int64).reshape(-1, 2)


def _with_others(spans: np.ndarray, others: np.ndarray) -> np.ndarray:
    """`spans` and those of `others` that overlap none of them, in order; neither overlap among themselves."""
    following = np.searchsorted(spans[:, 0], others[:, 1])  # the first span that starts at their end or later
    ends = np.append(spans[:, 1], -1)  # where there is no span before, the last one is read
    both = np.concatenate([spans, others[ends[following - 1] <= others[:, 0]]])
    return both[np.argsort(both[:, 0])]


def _spans_of_tokens(tokens: TokenOffsets, spans: np.ndarray) -> np.ndarray:
    """[tokens] the number of the span in which a token lies as a whole, -1 for none."""
    if not len(spans):
        return np.full(len(tokens.starts), -1)
    number = np.searchsorted(spans[:, 0], tokens.first_visible, side="right") - 1
    return np.where((number >= 0) & (tokens.ends <= spans[number, 1]), number, -1)


def _between_words(tokens: TokenOffsets, words: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """The spans that begin where a word does, and end where one does or a text ends."""
    bounds = np.concatenate([tokens.first_visible[words], tokens.text_starts])
    following = np.searchsorted(tokens.first_visible, spans[:, 1])  # past whitespace
    next_start = np.append(tokens.first_visible, tokens.text_starts[-1])[following]
    return spans[np.isin(spans[:, 0], bounds) & np.isin(next_start, bounds)]


def _join(starts: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """[tokens] where units start, if those in one span are joined."""
    joined = starts.copy()
    joined[1:] &= (spans[1:] < 0) | (spans[1:] != spans[:-1])
    return joined


def _overlay(starts: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """[tokens] where units start, if each span is a unit and cuts those that it overlaps."""
    found = starts & (spans < 0)
    found[1:] |= spans[1:] != spans[:-1]
    found[:1] = True
    return found
