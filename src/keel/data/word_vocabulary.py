"""The vocabulary of words, counted over a whole corpus."""

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
from keel.data.word_table import LONGEST, Rules, WordTable, count_words
from keel.errors import KeelError
from keel.events import OnEvent, counted, note

Prepare = Callable[[list[str]], list[str]]
"""What is done to texts before the rules: Chinese words get spaces between them."""


class Learned(NamedTuple):
    """Words under their rules."""

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
) -> Learned:
    """Count all words of a corpus; keep at most `size` of those that come `min_count` times, frequent ones first."""
    empty = models.WordLevel({SPECIALS["unk"]: 0}, unk_token=SPECIALS["unk"])
    cut = Rules(tokenizer_rules.make("words", empty, lowercase=lowercase, accents=accents, cjk=cjk))
    workers = default_workers()
    found = count_words(corpus.texts(), prepare, cut, workers)
    table = found.table
    if not table.size and found.long:
        raise KeelError(f"no word of {corpus.paths} has {LONGEST:,} bytes or fewer: look whether blanks were lost")
    if not table.size:
        raise KeelError(f"{corpus.paths} holds no text: there is nothing to learn a tokenizer from")
    if found.long:
        what = f"{counted(found.long, 'word has', 'words have')} more than {LONGEST:,} bytes"
        note(on_event, f"{what}, to be read as unknown: are blanks missing?")
    if found.floor:
        note(on_event, f"the distinct words are very many: those that had come {found.floor} times or less by then "
             "were given up on the way")  # fmt: skip
    distinct, total = table.size, int(table.counts.sum()) + found.long
    if passes:
        encode = _encoder(corpus, cut, table, prepare, workers)
        words, counts, pairs = learn_phrases(encode, table.words(), passes)
        total = int(counts.sum()) + found.long
    else:
        table = table.above(min_count - 1)
        words, counts, pairs = table.words(), table.counts, []
    kept = _chosen(words, counts, pairs, min_count, size - len(SPECIALS))
    if not len(kept):
        raise KeelError(f"no word of {corpus} comes {min_count} times: give more text, or say --min-count 1")
    share = counts[kept].sum() / total
    why = f"come {min_count} times or more" if min_count > 1 else "come up"
    most = " (the most frequent, for --text.vocabulary sets a bound)" if len(kept) == size - len(SPECIALS) else ""
    note(
        on_event,
        f"all {total:,} words of the text are counted: of {distinct:,} distinct ones {len(kept):,} that {why} are "
        f"kept{most}, {share:.1%} of the text; --min-count to change that",
    )
    # Of phrases two may be written alike, a_b c and a b_c: they are one.
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
            f"{sum(map(len, joins)):,} phrases were found, the commonest of them {_shown(words, counts, pairs)}",
        )
    return Learned(tokenizer_rules.mark_specials(inner, SPECIALS.values()), joins)


def _encoder(corpus: Corpus, cut: Rules, table: WordTable, prepare: Prepare, workers: int) -> Encode:
    def encode(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        found = cut.cut(prepare([sentence for text in texts for sentence in split_sentences(text)]))
        return table.find(found), found.lengths

    return lambda: ordered_map(encode, corpus.texts(), workers)


def _chosen(words: list[str], counts: np.ndarray, pairs: list[np.ndarray], least: int, most: int) -> np.ndarray:
    """The numbers of the words to keep; a part of a phrase counts as often as the phrase, which needs it."""
    counts, passes = counts.copy(), np.zeros(len(words), np.int64)
    for number, each in reversed(list(enumerate(pairs, 1))):
        for column in (0, 1):
            np.maximum.at(counts, each[:, column], counts[each[:, 2]])
        passes[each[:, 2]] = number
    kept = np.array(sorted(np.flatnonzero(counts >= max(least, 1)).tolist(), key=words.__getitem__), np.int64)
    return kept[np.lexsort((passes[kept], -counts[kept]))][:most]


def _shown(words: list[str], counts: np.ndarray, pairs: list[np.ndarray]) -> str:
    joined = np.concatenate(pairs)[:, 2]
    return ", ".join(words[number] for number in joined[np.argsort(-counts[joined], kind="stable")][:5].tolist())
