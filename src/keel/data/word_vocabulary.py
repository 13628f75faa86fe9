"""Word-level vocabulary, counted over a whole corpus."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tokenizers
from tokenizers import models

from keel.data import tokenizer_rules
from keel.data.corpus import Corpus
from keel.data.ordered_map import default_workers, ordered_map
from keel.data.phrases import Encode, learn_phrases
from keel.data.sentence_splitting import split_sentences
from keel.data.tokenizer_rules import SPECIALS
from keel.data.word_splitting import LONGEST, WordSplitter
from keel.data.word_table import WordTable, count_words
from keel.errors import KeelError
from keel.events import OnEvent, counted, note

Prepare = Callable[[list[str]], list[str]]
"""Preprocessing of texts: spaces between Chinese words."""


class WordVocabulary(NamedTuple):
    """Word-level tokenizer and phrases."""

    inner: tokenizers.Tokenizer
    phrases: list[list[str]]
    """For each pass the pairs of words that are joined, as "new york"."""


def learn_words(
    corpus: Corpus,
    *,
    size: int,
    min_count: int,
    lowercase: bool,
    accents: bool,
    cjk: bool,
    prepare: Prepare,
    passes: int,
    on_event: OnEvent,
) -> WordVocabulary:
    """Count all words of a corpus; keep the `size` most frequent of those with a count of `min_count` or more."""
    empty = models.WordLevel({SPECIALS["unk"]: 0}, unk_token=SPECIALS["unk"])
    splitter = WordSplitter(tokenizer_rules.make("words", empty, lowercase=lowercase, accents=accents, cjk=cjk))
    workers = default_workers()
    found = count_words(corpus.texts(), prepare, splitter, workers)
    table = found.table
    if not table.size and found.long:
        raise KeelError(f"no word of {corpus.paths} has {LONGEST:,} bytes or fewer: check whether spaces were lost")
    if not table.size:
        raise KeelError(f"{corpus.paths} holds no text to train a tokenizer on: give it more text")
    if found.long:
        what = f"{counted(found.long, 'word has', 'words have')} more than {LONGEST:,} bytes"
        note(on_event, f"{what}, encoded as [UNK]: is whitespace missing?")
    if found.floor:
        what = f"words with a count of {found.floor} or less were dropped while counting"
        note(on_event, f"{what}, to limit memory: there are too many distinct words")
    distinct, total = table.size, int(table.counts.sum()) + found.long
    if passes:
        encode = _encoder(corpus, splitter, table, prepare, workers)
        words, counts, pairs = learn_phrases(encode, table.words(), passes)
        total = int(counts.sum()) + found.long
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
    note(
        on_event,
        f"vocabulary: {counted(len(kept), 'word')} ({which}; {share:.1%} of {total:,} tokens); change with --min-count",
    )
    # Two phrases may have the same form, a_b c and a b_c: they are one.
    listed = dict.fromkeys([*SPECIALS.values(), *(words[number] for number in kept.tolist())])
    numbers = {word: number for number, word in enumerate(listed)}
    inner = tokenizer_rules.make(
        "words", models.WordLevel(numbers, unk_token=SPECIALS["unk"]), lowercase=lowercase, accents=accents, cjk=cjk
    )
    there = set(kept.tolist())
    joins = [[f"{words[a]} {words[b]}" for a, b, c in each.tolist() if {a, b, c} <= there] for each in pairs]
    if pairs:
        note(
            on_event,
            f"{sum(map(len, joins)):,} phrases found, the most frequent: {_top_phrases(words, counts, pairs)}",
        )
    return WordVocabulary(tokenizer_rules.add_special_tokens(inner, SPECIALS.values()), joins)


def _encoder(corpus: Corpus, splitter: WordSplitter, table: WordTable, prepare: Prepare, workers: int) -> Encode:
    def encode(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        found = splitter.split(prepare([sentence for text in texts for sentence in split_sentences(text)]))
        return table.find(found), found.lengths

    return lambda: ordered_map(encode, corpus.texts(), workers)


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
