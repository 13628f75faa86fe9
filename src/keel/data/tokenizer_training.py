"""Tokenizer training: subwords and characters from a sample of the corpus, words from all of it."""

import heapq
import random
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from keel.data import tokenizer_rules
from keel.data.corpus import Corpus, cut_text
from keel.data.language_detection import LANGUAGE_NAMES, LATIN, UNSPACED, language_name
from keel.data.language_mix import SMOOTHING, describe_shares, smoothed_shares
from keel.data.sentence_splitting import CHINESE, LONG_WORD, NO_WORD
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_rules import END_OF_TEXT, SPECIALS, Choice, Kind
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.localization import gettext_noop

MIN_PAIR_COUNT = 10
"""Minimum count of a BPE merge where no vocabulary size is requested: rarer tokens are hardly trained, and of Chinese,
which has no spaces, they are whole clauses."""
LEAST_FITTED = 4096
"""Smallest vocabulary size that is chosen by the size of the text."""
CHARACTER_COVERAGE = 0.99995
"""Share of a text that the characters of a WordPiece vocabulary cover, so that it is not spent on characters of other
scripts that occur a few times: 60 characters cover 0.9995 of English, 300 this share, 2,000 all of it."""
EAST_ASIAN = frozenset(("zh", "ja", "ko"))
"""Languages whose texts have Latin characters and digits in full width, which are treated as those of ASCII."""
PART = 1 << 16
"""Characters that are sampled together."""


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """Settings of tokenizer training."""

    kind: Kind | Literal["auto"] = "auto"
    """Kind of tokenizer; auto: wordpiece."""
    vocab_size: int = 30_000
    """Maximum number of tokens."""
    oversize: float = 1.0
    """WordPiece: a vocabulary of this many times the size is trained, and the tokens that the text uses most are kept.
    Many merges are rarely used but as parts of longer tokens; frequent words, such as names, take their place."""
    lowercase: Choice = "auto"
    """Lowercase the text; auto: for wordpiece and words."""
    accents: Choice = "auto"
    """Keep accents; auto: unless lowercased, and in other than Latin script and Chinese."""
    min_count: int = 0
    """Minimum count of a word or merge; 0: the default of the kind."""
    frequent_pairs: bool = False
    """BPE: a vocabulary that fits the text (`fitted_vocab_size`), of merges with a count of MIN_PAIR_COUNT or more."""
    language_smoothing: float = SMOOTHING
    """Exponent of the size of each language, where the corpus names languages."""
    phrases: int = 0
    """Passes that join words to phrases (kind words)."""
    sample: int = 200_000_000
    """Bytes of text to train on, a seeded sample; words are counted over all of the corpus."""
    seed: int = 0


def train_tokenizer(corpus: Corpus, settings: TokenizerSettings, on_event: OnEvent = ignore) -> Tokenizer:
    """Train a tokenizer; settings left at "auto" are chosen by the text and reported."""
    kind: Kind = "wordpiece" if settings.kind == "auto" else settings.kind
    alike = kind in ("wordpiece", "words") and not corpus.languages
    lowercase = alike if settings.lowercase == "auto" else settings.lowercase
    language = corpus.language()
    # Without accents, Hangul is taken apart, Hindi loses its vowels, and Japanese and Russian lose characters.
    accents = not lowercase or language not in (*LATIN, "zh", "") if settings.accents == "auto" else settings.accents
    half_width = not EAST_ASIAN.isdisjoint({language, *corpus.languages})
    smallest = 256 + len(SPECIALS) + 1 if kind == "bpe" else 32  # special tokens and bytes
    if settings.vocab_size < smallest:
        raise KeelError(f"a {kind} vocabulary of {settings.vocab_size} is too small: use at least {smallest}")
    if settings.oversize > 1 and kind != "wordpiece":
        raise UsageError(f"--text.oversize is for WordPiece: use --text.tokenizer wordpiece, not {kind}")
    if kind == "words":
        from keel.data.word_vocabulary import WordRules, learn_words  # imports Numba

        found = {part.language() for part in corpus.languages.values()} or {language}
        chinese = "zh" in found
        if chinese:
            note(on_event, "the text looks like Chinese: jieba segments it into words")
        if "ja" in found:
            what = "the text looks like Japanese, whose words are not separated by spaces: a word is a whole phrase"
            note(on_event, f"{what}; use --text.tokenizer wordpiece or characters")
        rules = WordRules(lowercase, accents, chinese=chinese, half_width=half_width)
        inner, phrases = learn_words(corpus, settings, rules, on_event)
        return Tokenizer(inner, chinese_words=chinese, phrases=phrases if any(phrases) else ())
    if settings.phrases:
        raise UsageError(f"phrases consist of words: use --text.tokenizer words, not {kind}")
    if corpus.languages:
        texts = _sample_languages(corpus, settings.sample, settings.language_smoothing, settings.seed, on_event)
    else:
        texts, total, held = _sample_corpus(corpus, settings.sample, settings.seed, on_event)
        part = "all" if held == total else f"a sample (seed {settings.seed}, {held / 1e6:.1f} MB) of"
        note(on_event, f"tokenizer training on {gettext_noop(part)} {total / 1e6:.1f} MB of text")
    if settings.kind == "auto" and corpus.languages:
        case = "lowercased" if lowercase else "cased"
        note(
            on_event,
            f"one vocabulary for all languages (WordPiece), {gettext_noop(case)}; change with --text.lowercase yes|no",
        )
    elif settings.kind == "auto":
        name = language_name("\n".join(lines[0] for lines in texts[:100]))
        what = (
            "Chinese: characters, and subwords of Latin words"
            if name == "Chinese"
            else f"{gettext_noop(name)}: subwords"
        )
        case = "lowercased" if lowercase else "cased"
        settings_text = "--text.tokenizer wordpiece|bpe|words|characters and --text.lowercase yes|no"
        note(on_event, f"the text looks like {what} (WordPiece), {gettext_noop(case)}; change with {settings_text}")
    frequent = kind == "bpe" and settings.frequent_pairs
    min_count = MIN_PAIR_COUNT if frequent else settings.min_count
    size = settings.vocab_size
    if frequent:
        size = min(size, fitted_vocab_size(sum(len(line.encode()) for lines in texts for line in lines)))
    whole = round(size * settings.oversize)
    tokenizer = Tokenizer(_train_subwords(texts, kind, whole, size, min_count, lowercase, accents, half_width))
    if frequent:
        rare = f" (merges with a count of {MIN_PAIR_COUNT} or more)" if len(tokenizer) < size else ""
        note(on_event, f"vocabulary: {len(tokenizer):,} BPE tokens{rare}; change with --text.vocabulary")
        if language in UNSPACED:
            what = f"the text looks like {LANGUAGE_NAMES[language]}"
            what += ": a BPE token may be several characters, or part of one"
            note(on_event, f"{what}; for one token per character, --text.tokenizer characters")
    return tokenizer


def fitted_vocab_size(text_bytes: int) -> int:
    """Vocabulary size for a text: 2,500 tokens for 1 MB, and twice as many for each four times as much text, so that
    small models do not spend most of their weights and time on tokens that they hardly see."""
    return max(LEAST_FITTED, round(2500 * (text_bytes / 1e6) ** 0.5))


def _train_subwords(
    texts: list[list[str]],
    kind: Kind,
    size: int,
    kept: int,
    min_count: int,
    lowercase: bool,
    accents: bool,
    half_width: bool,
) -> tokenizers.Tokenizer:
    """Train a subword or character tokenizer of at most `size` tokens on lists of lines, of which a WordPiece
    vocabulary keeps the `kept` most used; deterministic."""
    # BERT on byte-level BPE needs its five special tokens, GPT its end of text.
    specials = [*SPECIALS.values(), END_OF_TEXT] if kind == "bpe" else [*SPECIALS.values()]
    settings: dict[str, Any] = {"vocab_size": size, "special_tokens": specials, "show_progress": False}
    unknown = SPECIALS["unk"]
    new = partial(tokenizer_rules.make, kind, lowercase=lowercase, accents=accents, half_width=half_width)
    if kind == "bpe":
        inner, alphabet = new(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(min_frequency=min_count or 2, initial_alphabet=alphabet, **settings)
    elif kind == "wordpiece":
        inner = new(models.WordPiece(unk_token=unknown))
        # The library numbers "##a" by the order of a hash table, differently in every run, and ties depend on the
        # numbers. So it gets the characters in order, as special tokens, which are made ordinary ones afterwards.
        alphabet = _alphabet(texts, inner, kept // 3)
        inside = ("##" + character for character in alphabet if _continues_word(character))
        settings |= {"special_tokens": [*specials, *alphabet, *inside], "limit_alphabet": len(alphabet)}
        trainer = trainers.WordPieceTrainer(min_frequency=min_count or 2, initial_alphabet=alphabet, **settings)
    else:
        inner = new(models.WordLevel(unk_token=unknown))
        trainer = trainers.WordLevelTrainer(min_frequency=min_count, **settings)
    inner.train_from_iterator(texts, trainer)
    if kind == "wordpiece":
        inner = new(models.WordPiece(inner.get_vocab(), unk_token=unknown))
        if size > kept:
            vocabulary = _most_used(inner, texts, kept, settings["special_tokens"])
            inner = new(models.WordPiece(vocabulary, unk_token=unknown))
    return tokenizer_rules.add_special_tokens(inner, specials)


def _most_used(inner: tokenizers.Tokenizer, texts: list[list[str]], size: int, always: list[str]) -> dict[str, int]:
    """The vocabulary without the tokens that its longest-match-first rule uses least in these texts."""
    vocabulary = inner.get_vocab()
    counts = np.zeros(len(vocabulary), np.int64)
    for lines in texts:
        ids = [token for encoding in inner.encode_batch_fast(lines) for token in encoding.ids]
        counts += np.bincount(np.array(ids, np.int64), minlength=len(counts))
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    fixed = {*always}
    ranked = sorted(tokens, key=lambda token: (token not in fixed, -counts[vocabulary[token]], vocabulary[token]))
    kept = {*ranked[:size]}
    return {token: number for number, token in enumerate(token for token in tokens if token in kept)}


def _alphabet(texts: list[list[str]], inner: tokenizers.Tokenizer, size: int) -> list[str]:
    """The most frequent characters after normalization that cover CHARACTER_COVERAGE of the text, sorted."""
    raw: Counter[str] = Counter()
    for lines in texts:
        found, counts = np.unique(np.frombuffer("".join(lines).encode("utf-32-le"), np.uint32), return_counts=True)
        raw.update(dict(zip(map(chr, found.tolist()), counts.tolist(), strict=True)))
    normalized: Counter[str] = Counter()
    for character, count in raw.items():
        for plain in inner.normalizer.normalize_str(character).split():
            normalized.update(dict.fromkeys(plain, count))
    ranked = sorted(normalized, key=lambda character: (-normalized[character], character))
    covered = np.cumsum([normalized[character] for character in ranked])
    needed = int(np.searchsorted(covered, CHARACTER_COVERAGE * covered[-1])) + 1 if ranked else 0
    return sorted(ranked[: min(size, needed)])


def _continues_word(character: str) -> bool:
    """Whether a character may continue a word under BERT's rules: no punctuation, no Chinese."""
    punctuation = unicodedata.category(character).startswith("P") or (character.isascii() and not character.isalnum())
    return not punctuation and not CHINESE.match(character)


def _sample_languages(corpus: Corpus, size: int, smoothing: float, seed: int, on_event: OnEvent) -> list[list[str]]:
    """Sample about `size` bytes of text, as lists of lines, in smoothed shares of all languages; a language with less
    text than its share is repeated."""
    sizes = dict.fromkeys(corpus.languages, 0)
    for language, chunk in corpus.chunks_by_language():
        sizes[language] += sum(len(block.text.encode()) for block in chunk)
    if empty := [language for language, found in sizes.items() if not found]:
        raise KeelError(f"{empty[0]}: {corpus.languages[empty[0]].paths} holds no text: give it more, or leave it out")
    shares = dict(zip(sizes, smoothed_shares([*sizes.values()], smoothing).tolist(), strict=True))
    size = min(size, sum(sizes.values()))
    texts: list[list[str]] = []
    for language, part in corpus.languages.items():
        found, _, held = _sample_corpus(part, round(shares[language] * size), seed, on_event)
        whole, rest = divmod(shares[language] * size / held, 1)
        texts += found * max(1, int(whole)) + (found[: round(rest * len(found))] if whole else [])
    what = f"tokenizer training on a sample (seed {seed}, {size / 1e6:.1f} MB) of {sum(sizes.values()) / 1e6:.1f} MB"
    note(on_event, f"{what}: {describe_shares(shares)}")
    return texts


def _sample_corpus(corpus: Corpus, size: int, seed: int, on_event: OnEvent) -> tuple[list[list[str]], int, int]:
    """Sample about `size` bytes of text, as lists of lines, uniformly over the corpus; with the bytes of all text and
    of the sample."""
    rng = random.Random(seed)
    kept: list[tuple[float, int, int, list[str]]] = []
    total = held = left_out = 0
    for number, (lines, runs) in enumerate(_parts(corpus)):
        left_out += runs
        if not any(map(str.strip, lines)):
            continue
        width = sum(len(line.encode()) + 1 for line in lines)
        total, held = total + width, held + width
        # Reservoir sampling by random keys: those with the highest keys are dropped when there is too much.
        heapq.heappush(kept, (-rng.random(), number, width, lines))
        while held > size and len(kept) > 1:
            held -= heapq.heappop(kept)[2]
    if left_out and not kept:
        what = f"has no whitespace for {LONG_WORD:,} characters or more"
        raise KeelError(f"{corpus.paths} {what}: check whether spaces were lost")
    if left_out:
        what = f"tokenizer training skips {left_out:,} characters in words of {LONG_WORD:,} characters or more"
        note(on_event, f"{what}: is whitespace missing? (keel check names the first)")
    if not kept:
        raise KeelError(f"{corpus.paths} holds no text to train a tokenizer on: give it more text")
    return [lines for _, _, _, lines in sorted(kept, key=lambda item: item[1])], total, held


def _parts(corpus: Corpus) -> Iterator[tuple[list[str], int]]:
    """Lines of text, and the number of characters removed as over-long words."""
    lines: list[str] = []
    size = runs = 0
    for block in corpus.blocks():
        for _, part in cut_text(block.text, PART):
            words, found = NO_WORD.subn(" ", part)
            runs += len(part) - len(words) + found
            lines += words.split("\n")
            size += len(part)
            if size >= PART:
                yield lines, runs
                lines, size, runs = [], 0, 0
    if lines:
        yield lines, runs
