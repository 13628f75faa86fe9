"""Tokenizer training: subwords and characters from a sample of the corpus, words from all of it."""

from dataclasses import dataclass
from itertools import islice
from typing import Literal

from keel.data import tokenizer_rules
from keel.data.corpus import Corpus
from keel.data.corpus_sample import sample_corpus
from keel.data.sentence_splitting import detect_language
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_rules import Choice, Kind, space_chinese_words
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note

MIN_PAIR_COUNT = 10
"""Minimum count of a BPE merge where no vocabulary size is requested: rarer tokens are hardly trained, and of Chinese,
which has no spaces, they are whole clauses."""


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """Settings of tokenizer training."""

    kind: Kind | Literal["auto"] = "auto"
    """Kind of tokenizer; auto: wordpiece."""
    vocab_size: int = 30_000
    """Maximum number of tokens."""
    lowercase: Choice = "auto"
    """Lowercase the text; auto: for wordpiece and words."""
    accents: Choice = "auto"
    """Keep accents; auto: unless lowercased."""
    min_count: int = 0
    """Minimum count of a word or merge; 0: the default of the kind."""
    frequent_pairs: bool = False
    """BPE: learn only merges with a count of MIN_PAIR_COUNT or more."""
    phrases: int = 0
    """Passes that join words to phrases (kind words)."""
    sample: int = 200_000_000
    """Bytes of text to train on, a seeded sample; words are counted over all of the corpus."""
    seed: int = 0


def train_tokenizer(corpus: Corpus, settings: TokenizerSettings, on_event: OnEvent = ignore) -> Tokenizer:
    """Train a tokenizer; settings left at "auto" are chosen by the text and reported."""
    kind: Kind = "wordpiece" if settings.kind == "auto" else settings.kind
    lowercase = kind in ("wordpiece", "words") if settings.lowercase == "auto" else settings.lowercase
    accents = not lowercase if settings.accents == "auto" else settings.accents
    tokenizer_rules.check_size(kind, settings.vocab_size)
    if kind == "words":
        return _train_words(corpus, settings, lowercase, accents, on_event)
    if settings.phrases:
        raise UsageError(f"phrases consist of words: use --text.tokenizer words, not {kind}")
    texts = sample_corpus(corpus, settings.sample, settings.seed, on_event)
    if settings.kind == "auto":
        language = detect_language("\n".join(lines[0] for lines in texts[:100]))
        what = "Chinese: characters, and subwords of Latin words" if language == "zh" else "English: subwords"
        case = "lowercased" if lowercase else "cased"
        settings_text = "--text.tokenizer wordpiece|bpe|words|characters and --text.lowercase yes|no"
        note(on_event, f"the text looks like {what} (WordPiece), {case}; change with {settings_text}")
    frequent = kind == "bpe" and settings.frequent_pairs
    inner = tokenizer_rules.learn(
        texts,
        kind,
        settings.vocab_size,
        min_count=MIN_PAIR_COUNT if frequent else settings.min_count,
        lowercase=lowercase,
        accents=accents,
    )
    tokenizer = Tokenizer(inner)
    if frequent:
        rare = f" (merges with a count of {MIN_PAIR_COUNT} or more)" if len(tokenizer) < settings.vocab_size else ""
        note(on_event, f"vocabulary: {len(tokenizer):,} BPE tokens{rare}; change with --text.vocabulary")
        if language_of(corpus) == "zh":
            what = "a BPE token may be several characters, or part of one"
            note(
                on_event,
                f"the text looks like Chinese: {what}; for one token per character, --text.tokenizer characters",
            )
    return tokenizer


def _train_words(
    corpus: Corpus, settings: TokenizerSettings, lowercase: bool, accents: bool, on_event: OnEvent
) -> Tokenizer:
    from keel.data.word_vocabulary import learn_words  # imports Numba

    chinese = language_of(corpus) == "zh"
    if chinese:
        note(on_event, "the text looks like Chinese: jieba segments it into words")
    inner, phrases = learn_words(
        corpus,
        size=settings.vocab_size,
        min_count=settings.min_count,
        lowercase=lowercase,
        accents=accents,
        cjk=not chinese,
        prepare=space_chinese_words if chinese else list,
        passes=settings.phrases,
        on_event=on_event,
    )
    return Tokenizer(inner, chinese_words=chinese, phrases=phrases if any(phrases) else ())


def language_of(corpus: Corpus) -> Literal["en", "zh"]:
    """Language of the beginning of a corpus."""
    return detect_language("\n".join(block.text[:1000] for block in islice(corpus.blocks(), 100)))
