"""A vocabulary and its rules, learned from a corpus: pieces and characters from a sample, words from all of it."""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

import tokenizers

from keel.data import tokenizer_rules
from keel.data.corpus import Corpus
from keel.data.corpus_sample import draw_sample
from keel.data.sentence_splitting import detect_language
from keel.data.tokenizer_rules import Kind
from keel.errors import UsageError
from keel.events import OnEvent, note

if TYPE_CHECKING:
    from keel.data.chinese_words import ChineseWords

Choice = bool | Literal["auto"]

OFTEN = 10
"""Times that a byte pair must come to be learned where no number of pieces is asked for: a rarer piece is hardly
learned from, and of Chinese, where no blank ends a word, there are whole clauses among them."""


class TrainedTokenizer(NamedTuple):
    """What a tokenizer is made of."""

    inner: tokenizers.Tokenizer
    chinese_words: bool = False
    phrases: Sequence[Sequence[str]] = ()


def train_tokenizer(
    corpus: Corpus,
    kind: Kind | Literal["auto"],
    size: int,
    lowercase: Choice,
    accents: Choice,
    min_count: int,
    phrases: int,
    sample: int,
    seed: int,
    on_event: OnEvent,
) -> TrainedTokenizer:
    """Learn what `Tokenizer.train` promises; what is left open is chosen by the text, and said."""
    chosen_here = kind == "auto"
    if kind == "auto":
        kind = "wordpiece"
    if lowercase == "auto":
        lowercase = kind in ("wordpiece", "words")
    accents = not lowercase if accents == "auto" else accents
    tokenizer_rules.check_size(kind, size)
    if kind == "words":
        return _learn_words(corpus, size, min_count, lowercase, accents, phrases, on_event)
    if phrases:
        raise UsageError(f"phrases are made of words: say --text.tokenizer words, not {kind}")
    texts = draw_sample(corpus, sample, seed, on_event)
    language = detect_language("\n".join(lines[0] for lines in texts[:100]))
    if chosen_here:
        how = "Chinese: characters, and pieces of Latin words" if language == "zh" else "English: pieces of words"
        case = "in lower case" if lowercase else "with capital letters as they are"
        settings = "--text.tokenizer wordpiece|bpe|words|characters, --text.lowercase yes|no"
        note(on_event, f"the text looks like {how} are learned, {case} (to change that: {settings})")
    return TrainedTokenizer(
        tokenizer_rules.learn(texts, kind, size, min_count=min_count, lowercase=lowercase, accents=accents)
    )


def _learn_words(
    corpus: Corpus, size: int, least: int, lowercase: bool, accents: bool, passes: int, on_event: OnEvent
) -> TrainedTokenizer:
    from keel.data.word_vocabulary import learn_words  # not sooner: it brings Numba

    chinese = language_of(corpus) == "zh"
    if chinese:
        note(on_event, "the text looks like Chinese: its words are those that jieba sees")
    inner, joins = learn_words(
        corpus,
        size=size,
        min_count=least,
        lowercase=lowercase,
        accents=accents,
        cjk=not chinese,
        prepare=with_spaces if chinese else list,
        passes=passes,
        on_event=on_event,
    )
    return TrainedTokenizer(inner, chinese, joins if any(joins) else ())


def language_of(corpus: Corpus) -> Literal["en", "zh"]:
    """The language that the beginning of a corpus is in."""
    return detect_language("\n".join(block.text[:1000] for block in islice(corpus.blocks(), 100)))


def chinese_words() -> "ChineseWords":
    """What cuts Chinese into words."""
    from keel.data.chinese_words import ChineseWords  # not sooner: it brings Numba

    return ChineseWords.installed("cutting Chinese into words")


def with_spaces(texts: list[str]) -> list[str]:
    """Put a space between Chinese words."""
    return chinese_words().spaced(texts)[0]
