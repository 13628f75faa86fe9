"""Word-level vocabulary, counted over a whole corpus."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from keel.data.corpus import Corpus
from keel.data.ordered_map import default_workers, ordered_map
from keel.data.phrases import learn_phrases
from keel.data.sentence_splitting import CHINESE, split_sentences
from keel.data.tokenizer_rules import SPECIALS, space_chinese_words, word_level
from keel.data.word_splitting import LONGEST, WordSplitter
from keel.data.word_table import count_words
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note, pluralize

if TYPE_CHECKING:
    from keel.data.tokenizer_training import TokenizerSettings


@dataclass(frozen=True)
class WordRules:
    """How text is split into words and normalized."""

    lowercase: bool
    accents: bool
    """Keep accents."""
    chinese: bool = False
    """Segment Chinese words by jieba."""
    half_width: bool = False
    """Full-width Latin characters and digits are those of ASCII."""


def learn_words(
    corpus: Corpus, settings: "TokenizerSettings", rules: WordRules, on_event: OnEvent
) -> tuple[tokenizers.Tokenizer, list[list[str]]]:
    """Count all words of a corpus; keep the most frequent ones that occur often enough.

    Returns the tokenizer and, for each pass, the pairs of words that are joined to phrases, as "new york".
    """
    counted = _CountedWords(corpus, rules, on_event)
    table, size, min_count = counted.table, settings.vocab_size, settings.min_count
    distinct, total = table.size, int(table.counts.sum()) + counted.long
    if settings.phrases:
        words, counts, pairs = counted.phrases(settings.phrases)
        total = int(counts.sum()) + counted.long
    else:
        table = table.above(min_count - 1)
        words, counts, pairs = table.words(), table.counts, []
    kept = _select_words(words, counts, pairs, min_count, size - len(SPECIALS))
    if not len(kept):
        raise KeelError(f"no word of {corpus} has a count of {min_count} or more: give more text, or use --min-count 1")
    share = counts[kept].sum() / total
    why = f", with a count of {min_count} or more" if min_count > 1 else ""
    if len(kept) == size - len(SPECIALS):
        why = f", the most frequent up to --text.vocabulary {size:,}"
    which = f"{'all of ' if len(kept) == distinct else ''}{distinct:,} distinct ones{why}"
    what = f"vocabulary: {pluralize(len(kept), 'word')} ({which}; {share:.1%} of {total:,} tokens)"
    note(on_event, f"{what}; change with --min-count")
    there = set(kept.tolist())
    joins = [[f"{words[a]} {words[b]}" for a, b, c in each.tolist() if {a, b, c} <= there] for each in pairs]
    if pairs:
        top = _top_phrases(words, counts, pairs)
        note(on_event, f"{sum(map(len, joins)):,} phrases found, the most frequent: {top}")
    # Two phrases may have the same form, a_b c and a b_c: they are one.
    return counted.new_tokenizer(words[number] for number in kept.tolist()), joins


def learn_phrase_list(corpus: Corpus, passes: int, on_event: OnEvent) -> list[str]:
    """The phrases of a corpus as lowercased text, such as "new york", sorted."""
    chinese = "zh" in [part.language() for part in corpus.languages.values() or [corpus]]
    counted = _CountedWords(corpus, WordRules(True, True, chinese=chinese), ignore)
    texts, counts, pairs = counted.phrases(passes)
    for first, second, both in np.concatenate(pairs).tolist():  # in the order of the passes
        gap = "" if CHINESE.match(texts[first][-1]) or CHINESE.match(texts[second][0]) else " "
        texts[both] = texts[first] + gap + texts[second]
    joined = np.concatenate(pairs)[:, 2]
    found = sorted({texts[number] for number in joined[counts[joined] > 0].tolist()})
    top = f", the most frequent: {_top_phrases(texts, counts, pairs)}" if found else ""
    note(on_event, f"{pluralize(len(found), 'phrase')} found{top}")
    return found


class _CountedWords:
    """All words of a corpus, counted."""

    def __init__(self, corpus: Corpus, rules: WordRules, on_event: OnEvent):
        self.corpus, self.workers = corpus, default_workers()
        self.new_tokenizer = partial(
            word_level,
            lowercase=rules.lowercase,
            accents=rules.accents,
            cjk=not rules.chinese,
            half_width=rules.half_width,
        )
        self._prepare = space_chinese_words if rules.chinese else list[str]
        self._splitter = WordSplitter(self.new_tokenizer([]))
        found = count_words(corpus.texts(), self._prepare, self._splitter, self.workers)
        self.table, self.long = found.table, found.long
        if not self.table.size and self.long:
            raise KeelError(f"no word of {corpus.paths} has {LONGEST:,} bytes or fewer: check whether spaces were lost")
        if not self.table.size:
            raise KeelError(f"{corpus.paths} holds no text to train a tokenizer on: give it more text")
        if self.long:
            what = f"{pluralize(self.long, 'word has', 'words have')} more than {LONGEST:,} bytes"
            note(on_event, f"{what}, encoded as [UNK]: is whitespace missing?")
        if found.floor:
            what = f"words with a count of {found.floor} or less were dropped while counting"
            note(on_event, f"{what}, to limit memory: there are too many distinct words")

    def phrases(self, passes: int) -> tuple[list[str], np.ndarray, list[np.ndarray]]:
        """All words and phrases, their counts, and the pairs of each pass."""
        return learn_phrases(
            lambda: ordered_map(self._encode, self.corpus.texts(), self.workers), self.table.words(), passes
        )

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        split = self._splitter.split(self._prepare([sentence for text in texts for sentence in split_sentences(text)]))
        return self.table.find(split), split.lengths


def _select_words(words: list[str], counts: np.ndarray, pairs: list[np.ndarray], least: int, most: int) -> np.ndarray:
    """Indices of the words to keep; a part of a phrase counts at least as often as the phrase, which needs it."""
    counts, passes = counts.copy(), np.zeros(len(words), np.int64)
    for number, each in reversed(list(enumerate(pairs, 1))):
        for column in (0, 1):
            np.maximum.at(counts, each[:, column], counts[each[:, 2]])
        passes[each[:, 2]] = number
    kept = np.array(sorted(np.flatnonzero(counts >= max(least, 1)).tolist(), key=words.__getitem__), np.int64)
    return kept[np.lexsort((passes[kept], -counts[kept]))][:most]


def _top_phrases(words: list[str], counts: np.ndarray, pairs: list[np.ndarray]) -> str:
    joined = np.concatenate(pairs)[:, 2]
    return ", ".join(words[number] for number in joined[np.argsort(-counts[joined], kind="stable")][:5].tolist())
