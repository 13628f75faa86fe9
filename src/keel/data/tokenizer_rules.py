"""Rules of the four kinds of tokenizer: normalizer, pre-tokenizer, model and decoder of the `tokenizers` library."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from keel.data.sentence_splitting import CHINESE
from keel.errors import KeelError

if TYPE_CHECKING:
    from keel.data.chinese_words import ChineseWords

Kind = Literal["wordpiece", "bpe", "words", "characters"]
Choice = bool | Literal["auto"]

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
END_OF_TEXT = "<|endoftext|>"
WHITESPACE = r" \n\r\t\v\f\x00"
"""fastText's whitespace, as a regular expression: no Unicode spaces."""


def make(kind: Kind, model: Any, *, lowercase: bool, accents: bool, cjk: bool = True) -> tokenizers.Tokenizer:
    """Tokenizer of a model with the rules of its kind: BERT's, GPT-2's, words or characters."""
    inner = tokenizers.Tokenizer(model)
    if kind == "bpe":
        if lowercase:
            inner.normalizer = normalizers.Lowercase()
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        inner.post_processor = processors.ByteLevel(trim_offsets=False)
        return inner
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=cjk and kind != "characters",
        strip_accents=not accents,
        lowercase=lowercase,
    )
    if kind == "characters":
        inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        inner.decoder = decoders.Fuse()
    else:
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if kind == "wordpiece":
        inner.decoder = decoders.WordPiece(prefix="##")
    return inner


def split_at_whitespace(model: Any) -> tokenizers.Tokenizer:
    """Tokenizer of a word model with fastText's rule: split at whitespace, no normalization."""
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{WHITESPACE}]+"), "removed")
    return inner


def add_special_tokens(inner: tokenizers.Tokenizer, specials: Iterable[str]) -> tokenizers.Tokenizer:
    """Declare the special tokens that the vocabulary has; Hugging Face then adds [CLS] and [SEP] around a text."""
    inner.add_special_tokens([token for token in specials if inner.token_to_id(token) is not None])
    begin, end = (inner.token_to_id(SPECIALS[name]) for name in ("cls", "sep"))
    if begin is not None and end is not None and inner.post_processor is None:
        inner.post_processor = processors.BertProcessing((SPECIALS["sep"], end), (SPECIALS["cls"], begin))
    return inner


def check_size(kind: Kind, size: int) -> None:
    """Refuse a vocabulary too small for special tokens and bytes."""
    smallest = 256 + len(SPECIALS) + 1 if kind == "bpe" else 32
    if size < smallest:
        raise KeelError(f"a {kind} vocabulary of {size} is too small: use at least {smallest}")


def learn(
    texts: list[list[str]], kind: Kind, size: int, *, min_count: int, lowercase: bool, accents: bool
) -> tokenizers.Tokenizer:
    """Train a subword or character tokenizer of at most `size` tokens on lists of lines; deterministic."""
    # BERT on byte-level BPE needs its five special tokens, GPT its end of text.
    specials = [*SPECIALS.values(), END_OF_TEXT] if kind == "bpe" else [*SPECIALS.values()]
    settings: dict[str, Any] = {"vocab_size": size, "special_tokens": specials, "show_progress": False}
    unknown = SPECIALS["unk"]
    if kind == "bpe":
        inner = make(kind, models.BPE(), lowercase=lowercase, accents=accents)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        inner.train_from_iterator(
            texts, trainers.BpeTrainer(min_frequency=min_count or 2, initial_alphabet=alphabet, **settings)
        )
    elif kind == "wordpiece":
        inner = make(kind, models.WordPiece(unk_token=unknown), lowercase=lowercase, accents=accents)
        # The library numbers "##a" by the order of a hash table, differently in every run, and ties depend on the
        # numbers. So it gets the characters in order, as special tokens, which are made ordinary ones afterwards.
        alphabet = _alphabet(texts, inner, size // 3)
        inside = ("##" + character for character in alphabet if _continues_word(character))
        settings["special_tokens"] = [*specials, *alphabet, *inside]
        trainer = trainers.WordPieceTrainer(
            min_frequency=min_count or 2, initial_alphabet=alphabet, limit_alphabet=len(alphabet), **settings
        )
        inner.train_from_iterator(texts, trainer)
        model = models.WordPiece(inner.get_vocab(), unk_token=unknown)
        inner = make(kind, model, lowercase=lowercase, accents=accents)
    else:
        inner = make(kind, models.WordLevel(unk_token=unknown), lowercase=lowercase, accents=accents)
        inner.train_from_iterator(texts, trainers.WordLevelTrainer(min_frequency=min_count, **settings))
    return add_special_tokens(inner, specials)


def _alphabet(texts: list[list[str]], inner: tokenizers.Tokenizer, size: int) -> list[str]:
    """The most frequent characters after normalization, sorted."""
    raw: Counter[str] = Counter()
    for lines in texts:
        found, counts = np.unique(np.frombuffer("".join(lines).encode("utf-32-le"), np.uint32), return_counts=True)
        raw.update(dict(zip(map(chr, found.tolist()), counts.tolist(), strict=True)))
    normalized: Counter[str] = Counter()
    for character, count in raw.items():
        for plain in inner.normalizer.normalize_str(character).split():
            normalized.update(dict.fromkeys(plain, count))
    return sorted(sorted(normalized, key=lambda character: (-normalized[character], character))[:size])


def _continues_word(character: str) -> bool:
    """Whether a character may continue a word under BERT's rules: no punctuation, no Chinese."""
    punctuation = unicodedata.category(character).startswith("P") or (character.isascii() and not character.isalnum())
    return not punctuation and not CHINESE.match(character)


def chinese_words() -> "ChineseWords":
    """Chinese word segmentation by the installed jieba."""
    from keel.data.chinese_words import ChineseWords  # imports Numba

    return ChineseWords.installed("Chinese word segmentation")


def space_chinese_words(texts: list[str]) -> list[str]:
    """Put a space between Chinese words."""
    return chinese_words().spaced(texts)[0]


def tokenizer_kind(rules: dict[str, Any]) -> Kind:
    """Kind of the tokenizer that a tokenizer.json describes."""
    model = rules["model"]["type"]
    if model == "WordLevel":
        cut = rules["pre_tokenizer"] or {}
        return "characters" if cut.get("type") == "Split" and cut["behavior"] == "Isolated" else "words"
    if model not in ("WordPiece", "BPE"):
        raise KeelError(f"this tokenizer is a {model}: Keel reads WordPiece, byte-level BPE, words and characters")
    return "wordpiece" if model == "WordPiece" else "bpe"
