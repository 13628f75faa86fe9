"""Rules of the four kinds of tokenizer: normalizer, pre-tokenizer, model and decoder of the `tokenizers` library."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

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
        handle_chinese_chars=cjk and kind != "characters", strip_accents=not accents, lowercase=lowercase
    )
    if kind == "characters":
        inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        inner.decoder = decoders.Fuse()
    else:
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if kind == "wordpiece":
        inner.decoder = decoders.WordPiece(prefix="##")
    return inner


def word_level(words: Iterable[str], *, lowercase: bool, accents: bool, cjk: bool) -> tokenizers.Tokenizer:
    """Word-level tokenizer of the special tokens and these words, with BERT's rules."""
    vocab = {token: number for number, token in enumerate(dict.fromkeys([*SPECIALS.values(), *words]))}
    model = models.WordLevel(vocab, unk_token=SPECIALS["unk"])
    inner = make("words", model, lowercase=lowercase, accents=accents, cjk=cjk)
    return add_special_tokens(inner, SPECIALS.values())


def split_at_whitespace(vocab: dict[str, int], unknown: str) -> tokenizers.Tokenizer:
    """Word-level tokenizer with fastText's rule: split at whitespace, no normalization."""
    inner = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=unknown))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{WHITESPACE}]+"), "removed")
    return inner


def add_special_tokens(inner: tokenizers.Tokenizer, specials: Iterable[str]) -> tokenizers.Tokenizer:
    """Declare the special tokens that the vocabulary has; Hugging Face then adds [CLS] and [SEP] around a text."""
    inner.add_special_tokens([token for token in specials if inner.token_to_id(token) is not None])
    begin, end = (inner.token_to_id(SPECIALS[name]) for name in ("cls", "sep"))
    if begin is not None and end is not None and inner.post_processor is None:
        inner.post_processor = processors.BertProcessing((SPECIALS["sep"], end), (SPECIALS["cls"], begin))
    return inner


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
