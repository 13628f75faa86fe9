"""The rules of the four kinds of tokenizer, as the `tokenizers` library has them."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from keel.data.sentence_splitting import CHINESE
from keel.errors import KeelError

Kind = Literal["wordpiece", "bpe", "words", "characters"]

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
END_OF_TEXT = "<|endoftext|>"
BLANKS = r" \n\r\t\v\f\x00"
"""What ends a word for fastText, as a regular expression has it; other scripts' spaces do not."""


def make(kind: Kind, model: Any, *, lowercase: bool, accents: bool, cjk: bool = True) -> tokenizers.Tokenizer:
    """Put a model of pieces under the rules of its kind: BERT's, GPT-2's, or one piece for each word or character."""
    inner = tokenizers.Tokenizer(model)
    if kind == "bpe":
        if lowercase:
            inner.normalizer = normalizers.Lowercase()
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        inner.post_processor = processors.ByteLevel(trim_offsets=False)
        return inner
    apart = cjk and kind != "characters"
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=apart, strip_accents=not accents, lowercase=lowercase
    )
    if kind == "characters":
        inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        inner.decoder = decoders.Fuse()
    else:
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if kind == "wordpiece":
        inner.decoder = decoders.WordPiece(prefix="##")
    return inner


def at_blanks(model: Any) -> tokenizers.Tokenizer:
    """Put a model of words under fastText's rule: whatever stands between blanks is a word, as it is written."""
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{BLANKS}]+"), "removed")
    return inner


def mark_specials(inner: tokenizers.Tokenizer, specials: Iterable[str]) -> tokenizers.Tokenizer:
    """Mark the special pieces that there are; others who read the files then put [CLS] and [SEP] around a text."""
    inner.add_special_tokens([token for token in specials if inner.token_to_id(token) is not None])
    begin, end = (inner.token_to_id(SPECIALS[name]) for name in ("cls", "sep"))
    if begin is not None and end is not None and inner.post_processor is None:
        inner.post_processor = processors.BertProcessing((SPECIALS["sep"], end), (SPECIALS["cls"], begin))
    return inner


def check_size(kind: Kind, size: int) -> None:
    """Refuse a vocabulary that could not hold what it must."""
    least = 256 + len(SPECIALS) + 1 if kind == "bpe" else 32
    if size < least:
        raise KeelError(f"a {kind} vocabulary of {size} is too small: give at least {least}")


def learn(
    texts: list[list[str]], kind: Kind, size: int, *, min_count: int, lowercase: bool, accents: bool
) -> tokenizers.Tokenizer:
    """Learn at most `size` pieces or characters from lists of lines; equal texts give equal pieces."""
    # Byte-level BPE can write anything, but BERT on it needs its five special pieces, and GPT its end of text.
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
        # The library would number "##a" as it meets words in a hash table, differently in every run, and ties hang on
        # the numbers. So the single characters are given to it in order, as if special, and put right afterwards.
        alphabet = _alphabet(texts, inner, size // 3)
        settings["special_tokens"] = [*specials, *alphabet, *("##" + letter for letter in alphabet if _joins(letter))]
        trainer = trainers.WordPieceTrainer(
            min_frequency=min_count or 2, initial_alphabet=alphabet, limit_alphabet=len(alphabet), **settings
        )
        inner.train_from_iterator(texts, trainer)
        model = models.WordPiece(inner.get_vocab(), unk_token=unknown)
        inner = make(kind, model, lowercase=lowercase, accents=accents)
    else:
        inner = make(kind, models.WordLevel(unk_token=unknown), lowercase=lowercase, accents=accents)
        inner.train_from_iterator(texts, trainers.WordLevelTrainer(min_frequency=min_count, **settings))
    return mark_specials(inner, specials)


def _alphabet(texts: list[list[str]], inner: tokenizers.Tokenizer, most: int) -> list[str]:
    """List the most frequent characters, as the rules leave them, in order."""
    raw: Counter[str] = Counter()
    for lines in texts:
        found, counts = np.unique(np.frombuffer("".join(lines).encode("utf-32-le"), np.uint32), return_counts=True)
        raw.update(dict(zip(map(chr, found.tolist()), counts.tolist(), strict=True)))
    counted: Counter[str] = Counter()
    for letter, count in raw.items():
        for plain in inner.normalizer.normalize_str(letter).split():
            counted.update(dict.fromkeys(plain, count))
    return sorted(sorted(counted, key=lambda letter: (-counted[letter], letter))[:most])


def _joins(letter: str) -> bool:
    """Say whether BERT's rules let a character continue a word: no punctuation, no Chinese."""
    punctuation = unicodedata.category(letter).startswith("P") or (letter.isascii() and not letter.isalnum())
    return not punctuation and not CHINESE.match(letter)


def tokenizer_kind(rules: dict[str, Any]) -> Kind:
    """Tell which of the four kinds a tokenizer.json describes."""
    model = rules["model"]["type"]
    if model == "WordLevel":
        cut = rules["pre_tokenizer"] or {}
        return "characters" if cut.get("type") == "Split" and cut["behavior"] == "Isolated" else "words"
    if model not in ("WordPiece", "BPE"):
        raise KeelError(f"this tokenizer is a {model}: Keel reads WordPiece, byte-level BPE, words and characters")
    return "wordpiece" if model == "WordPiece" else "bpe"
