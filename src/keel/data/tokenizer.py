"""Tokenizers: text to token ids and back, on the `tokenizers` library."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import tokenizers

from keel.data import tokenizer_rules
from keel.data.corpus import Corpus
from keel.data.encoding_cache import WordCache
from keel.data.language_detection import detect_language
from keel.data.language_mix import SMOOTHING
from keel.data.sentence_splitting import CJK
from keel.data.text_chunks import are_small, chunk_groups
from keel.data.text_encodings import replace_all_surrogates
from keel.data.tokenizer_rules import (
    END_OF_TEXT,
    SPECIALS,
    Choice,
    Kind,
    chinese_words,
    panics_as_errors,
    space_chinese_words,
)
from keel.data.unknown_words import UnknownWords
from keel.errors import KeelError
from keel.events import OnEvent, ignore

if TYPE_CHECKING:
    from keel.data.phrases import Phrases

BETWEEN_CHINESE = re.compile(
    f"(?<=[{CJK}\u3000-\u303f\uff00-\uffef“”‘’…—]) | (?=[{CJK}\u3000-\u303f\uff00-\uffef“”‘’…—])"
)
"""Spaces that word segmentation has put between Chinese words."""
AROUND_CHARACTERS = re.compile(f"(?<=[{CJK}\u3000-\u303f\uff00-\uffef]) | (?=[{CJK}\u3000-\u303f\uff00-\uffef])")
"""Spaces around Chinese characters; other scripts keep theirs at quotes and dashes."""
WIDTHS = str.maketrans(tokenizer_rules.HALF_WIDTH)
SEVERAL_CHINESE = re.compile(f"[{CJK}]{{2}}")


@dataclass(frozen=True)
class Encoding:
    """Tokens of a text: their ids, (start, end) offsets in the text, and word indices."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    word_ids: list[int]

    def truncate(self, count: int) -> "Encoding":
        return Encoding(self.ids[:count], self.offsets[:count], self.word_ids[:count])

    def extend(self, following: "Encoding", start: int) -> None:
        """Append the tokens of a chunk of the text that begins at `start`."""
        words = self.word_ids[-1] + 1 if self.word_ids else 0
        self.ids.extend(following.ids)
        self.offsets.extend((first + start, end + start) for first, end in following.offsets)
        self.word_ids.extend(word + words for word in following.word_ids)


class Tokenizer:
    """A vocabulary and its tokenization rules, equal to Hugging Face's for the same files."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        special_tokens: dict[str, str] | None = None,
        *,
        chinese_words: bool = False,
        phrases: Sequence[Sequence[str]] = (),
    ):
        # Published files carry the padding and truncation of their last use.
        inner.no_padding()
        inner.no_truncation()
        self._inner = inner
        self._rules: dict[str, Any] = json.loads(inner.to_str())
        for large in ("vocab", "merges"):
            self._rules["model"].pop(large, None)
        self.kind: Kind = tokenizer_rules.tokenizer_kind(self._rules)
        names = special_tokens if special_tokens is not None else SPECIALS
        self._special_tokens = {name: token for name, token in names.items() if inner.token_to_id(token) is not None}
        self._words = WordCache(self._inner, self._rules)
        self._chinese_words, self._phrase_pairs = chinese_words, phrases
        self._unseen = UnknownWords()

    @classmethod
    def train(
        cls,
        corpus: Corpus,
        *,
        kind: Kind | Literal["auto"] = "auto",
        size: int = 30_000,
        lowercase: Choice = "auto",
        accents: Choice = "auto",
        min_count: int = 0,
        phrases: int = 0,
        language_smoothing: float = SMOOTHING,
        sample: int = 200_000_000,
        seed: int = 0,
        on_event: OnEvent = ignore,
    ) -> "Tokenizer":
        """Train a tokenizer of at most `size` tokens (see `TokenizerSettings` for the arguments)."""
        from keel.data.tokenizer_training import TokenizerSettings, train_tokenizer

        settings = TokenizerSettings(
            kind=kind,
            vocab_size=size,
            lowercase=lowercase,
            accents=accents,
            min_count=min_count,
            phrases=phrases,
            language_smoothing=language_smoothing,
            sample=sample,
            seed=seed,
        )
        return train_tokenizer(corpus, settings, on_event)

    @classmethod
    def from_vocabulary(
        cls, vocabulary: str | Path, *, lowercase: Choice = "auto", accents: Choice = "auto", cjk: bool = True
    ) -> "Tokenizer":
        """Read BERT's vocab.txt; lowercase "auto": cased if the vocabulary has capital letters."""
        return cls(tokenizer_rules.read_vocab_txt(Path(vocabulary), lowercase=lowercase, accents=accents, cjk=cjk))

    @classmethod
    def from_merges(cls, vocabulary: str | Path, merges: str | Path) -> "Tokenizer":
        """Read GPT-2's encoder.json and vocab.bpe (vocab.json and merges.txt)."""
        return cls(tokenizer_rules.read_merges(Path(vocabulary), Path(merges)))

    @classmethod
    def from_words(cls, words: Iterable[str]) -> "Tokenizer":
        """Word-level tokenizer of these words, after the special tokens; lowercases if no word has capital letters.

        Where Chinese words have several characters, text is segmented by jieba.
        """
        words = list(words)
        chinese = detect_language("\n".join(words[:10_000])) == "zh" and any(map(SEVERAL_CHINESE.search, words))
        lowercase = all(word == word.lower() for word in words if word not in SPECIALS.values())
        narrow = chinese and all(map(tokenizer_rules.HALF_WIDTH.keys().isdisjoint, words))
        inner = tokenizer_rules.word_level(words, lowercase=lowercase, accents=True, cjk=not chinese, half_width=narrow)
        return cls(inner, chinese_words=chinese)

    @classmethod
    def from_whitespace_words(cls, words: Iterable[str]) -> "Tokenizer":
        """Word-level tokenizer of these words, split at whitespace only, as in fastText."""
        # fastText knows no special tokens ([UNK] is an ordinary word): with a space in them, no text contains these.
        special_tokens = {name: f"{token} " for name, token in SPECIALS.items()}
        vocab = {token: number for number, token in enumerate([*special_tokens.values(), *words])}
        return cls(tokenizer_rules.split_at_whitespace(vocab, special_tokens["unk"]), special_tokens)

    def with_word(self, word: str) -> "Tokenizer":
        """A copy of this word-level tokenizer with one more word at the end, unless it is known."""
        if self._inner.token_to_id(word) is not None:
            return self
        form = json.loads(self.to_json())
        form["model"]["vocab"][word] = len(self)
        return self._copy_with(tokenizers.Tokenizer.from_str(json.dumps(form)))

    def with_special_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """A copy with further special tokens at the end, except those it has."""
        if all(self._inner.token_to_id(token) is not None for token in tokens):
            return self
        inner = tokenizers.Tokenizer.from_str(self.to_json())
        inner.add_special_tokens(list(tokens))
        return self._copy_with(inner)

    def _copy_with(self, inner: tokenizers.Tokenizer) -> "Tokenizer":
        return type(self)(inner, self._special_tokens, **self.extra_rules)

    def special_token_id(self, token: str) -> int | None:
        """The id of a token, None if there is no such token."""
        return self._inner.token_to_id(token)

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """Read the tokenizer of a model folder: tokenizer.json, else vocab.txt, else vocab.json and merges.txt."""
        inner, special_tokens, extra_rules = tokenizer_rules.read_tokenizer(Path(folder))
        return cls(inner, special_tokens, **extra_rules)

    def save(self, folder: str | Path) -> None:
        """Write the files that `load` and Hugging Face's AutoTokenizer read."""
        tokenizer_rules.write_tokenizer(Path(folder), self._inner, self._special_tokens, self.extra_rules)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        # A published vocabulary may have a token twice, which leaves a gap in the ids.
        return max(self._inner.get_vocab().values()) + 1

    def id_of(self, token: str) -> int:
        """The id of a token; that of [UNK] for an unknown token."""
        number = self._inner.token_to_id(token)
        return self.unknown_id if number is None else number

    def token_of(self, number: int) -> str:
        """The token of an id, or the out-of-vocabulary word with this id."""
        beyond = number - len(self)
        token = self._inner.id_to_token(number) if beyond < 0 else self._unseen.word(beyond)
        if token is None:
            raise KeelError(f"there is no token with id {number}: this tokenizer has {len(self)} tokens")
        return token

    def vocabulary(self) -> list[str]:
        """All tokens, by their id."""
        return [self.token_of(number) for number in range(len(self))]

    def word_of(self, number: int) -> str:
        """The token of an id for people to read: as text in byte-level BPE, whose tokens are written bytes."""
        return (self.decode([number]).strip() or self.token_of(number)) if self.kind == "bpe" else self.token_of(number)

    def has_special_token(self, name: str) -> bool:
        """Whether there is a special token of this name: pad, unk, cls, sep or mask."""
        return name in self._special_tokens

    @property
    def pad_id(self) -> int:
        """The id of [PAD]."""
        return self._special("pad")

    @property
    def unknown_id(self) -> int:
        """The id of [UNK]."""
        return self._special("unk")

    @property
    def cls_id(self) -> int:
        """The id of [CLS]."""
        return self._special("cls")

    @property
    def sep_id(self) -> int:
        """The id of [SEP]."""
        return self._special("sep")

    @property
    def end_id(self) -> int:
        """The id between documents: <|endoftext|>, or [SEP] where there is none."""
        number = self._inner.token_to_id(END_OF_TEXT)
        return self.sep_id if number is None else number

    @property
    def mask_id(self) -> int:
        """The id of [MASK]."""
        return self._special("mask")

    @property
    def special_ids(self) -> list[int]:
        """The ids of all special tokens."""
        end = self._inner.token_to_id(END_OF_TEXT)
        return sorted({*(self._special(name) for name in self._special_tokens), *([] if end is None else [end])})

    @property
    def config_token_ids(self) -> dict[str, int]:
        """Special token ids by their names in a Hugging Face config.json."""
        ids = {"pad_token_id": self.pad_id} if self.has_special_token("pad") else {}
        end = self._inner.token_to_id(END_OF_TEXT)
        return ids if end is None else ids | {"bos_token_id": end, "eos_token_id": end}

    @cached_property
    def continues_word(self) -> np.ndarray:
        """[vocab_size] bool: whether the token continues a word ("##ing")."""
        inside = np.zeros(len(self), bool)
        prefix = self._rules["model"].get("continuing_subword_prefix")
        if prefix:
            inside[[number for token, number in self._inner.get_vocab().items() if token.startswith(prefix)]] = True
        return inside

    @property
    def lowercase(self) -> bool:
        """Whether text is lowercased."""
        return bool(tokenizer_rules.bert_rules(self._rules).get("lowercase", False))

    def to_half_width(self, word: str) -> str:
        """The word with Latin characters and digits in half width, if the rules say so."""
        return word.translate(WIDTHS) if self._half_width else word

    @cached_property
    def _half_width(self) -> bool:
        return tokenizer_rules.is_half_width(self._rules)

    def encode(self, text: str) -> Encoding:
        """Encode one text, without [CLS] and [SEP]."""
        return self.encode_with_offsets([text])[0]

    def encode_with_offsets(self, texts: list[str], *, oov_ids: bool = False) -> list[Encoding]:
        """Encode texts with offsets; with `oov_ids`, out-of-vocabulary words get ids beyond the vocabulary."""
        texts = replace_all_surrogates(texts)
        if are_small(texts):
            found = self._encode_small(texts)
        else:
            found = [Encoding([], [], []) for _ in texts]
            for group in chunk_groups(texts):
                for chunk, encoding in zip(group, self._encode_small([each.text for each in group]), strict=True):
                    found[chunk.owner].extend(encoding, chunk.start)
        if oov_ids and self.kind == "words":
            self._unseen.begin()
            found = list(map(self._with_oov_ids, texts, found))
        return list(map(self._with_phrases, found)) if self._phrase_pairs else found

    def _encode_small(self, texts: list[str]) -> list[Encoding]:
        spaced, positions = chinese_words().spaced(texts) if self._chinese_words else (texts, [])
        with panics_as_errors():
            encodings = self._inner.encode_batch(spaced, add_special_tokens=False)
        found = [Encoding(each.ids, each.offsets, cast(list[int], each.word_ids)) for each in encodings]
        for index, original in enumerate(map(np.ndarray.tolist, positions)):  # offsets in the text without the spaces
            spans = found[index].offsets
            offsets = [(original[start], original[end - 1] + 1) if end > start else (0, 0) for start, end in spans]
            found[index] = replace(found[index], offsets=offsets)
        return found

    def _with_phrases(self, encoding: Encoding) -> Encoding:
        ids, _, sizes = self._phrases.join(np.array(encoding.ids, np.int32), np.array([len(encoding.ids)]))
        ends = np.cumsum(sizes).tolist()
        starts = [0, *ends[:-1]]
        offsets = [(encoding.offsets[a][0], encoding.offsets[b - 1][1]) for a, b in zip(starts, ends, strict=False)]
        return Encoding(ids.tolist(), offsets, [encoding.word_ids[start] for start in starts[: len(ends)]])

    def encode_many(self, texts: list[str], *, oov_ids: bool = False) -> list[list[int]]:
        """Encode texts without offsets, several times faster."""
        ids, lengths = self.encode_flat(texts, oov_ids=oov_ids)
        ends = np.cumsum(lengths).tolist()
        flat = ids.tolist()
        return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _with_oov_ids(self, text: str, encoding: Encoding) -> Encoding:
        """Give out-of-vocabulary words ids from len(self) on, in the order of their first occurrence."""
        ids = list(encoding.ids)
        unknown = self.unknown_id
        for index, (start, end) in enumerate(encoding.offsets):
            if ids[index] == unknown and (word := text[start:end]) != self._special_tokens["unk"]:
                ids[index] = len(self) + self._unseen.number(self.normalize_word(word))
        return replace(encoding, ids=ids)

    def normalize_word(self, word: str) -> str:
        """The word as the vocabulary has it: perhaps lowercased, or without accents."""
        return self._inner.normalizer.normalize_str(word).strip() if self._inner.normalizer else word

    def encode_words(self, words: list[str], *, oov_ids: bool = False) -> list[list[int]]:
        """Encode each word separately; words in the vocabulary, and all words with `oov_ids`, get a single id."""
        words = replace_all_surrogates(words)
        # In byte-level BPE the space before a word is part of its first token.
        found = self.encode_many([f" {word}" for word in words] if self.kind == "bpe" else words)
        if self.kind == "words":
            self._unseen.begin()
            for index, word in enumerate(words):
                whole = "".join(self.normalize_word(word).split())  # it puts spaces around Chinese characters
                number = self._inner.token_to_id(whole) if whole else None
                if number is not None or (oov_ids and whole):
                    found[index] = [len(self) + self._unseen.number(whole) if number is None else number]
        return found

    def encode_flat(self, texts: list[str], *, oov_ids: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Encode texts into one array [tokens] int32, with the number of tokens of each text [texts]."""
        texts = replace_all_surrogates(texts)
        if are_small(texts):
            ids, lengths = self._encode_small_flat(texts)
        else:
            lengths, parts = np.zeros(len(texts), np.int64), [np.empty(0, np.int32)]
            for group in chunk_groups(texts):
                ids, sizes = self._encode_small_flat([chunk.text for chunk in group])
                parts.append(ids)
                np.add.at(lengths, [chunk.owner for chunk in group], sizes)
            ids = np.concatenate(parts)
        if not oov_ids or self.kind != "words" or not (unknown := ids == self.unknown_id).any():
            return ids, lengths
        parts = np.split(ids, np.cumsum(lengths)[:-1])
        odd = _texts_with(unknown, lengths)
        for number, encoding in zip(odd, self.encode_with_offsets([texts[n] for n in odd], oov_ids=True), strict=True):
            parts[number] = np.array(encoding.ids, np.int32)
        return np.concatenate(parts), np.fromiter(map(len, parts), np.int64, len(parts))

    def _encode_small_flat(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        with panics_as_errors():
            ids, lengths = self._words.encode(space_chinese_words(texts) if self._chinese_words else texts)
        if self._phrase_pairs:
            ids, lengths, _ = self._phrases.join(ids, lengths)
        return ids, lengths

    def unknown_share(self, texts: list[str]) -> float:
        """Share of [UNK] among the tokens of texts."""
        if not self.has_special_token("unk") or self.kind == "bpe":  # byte-level BPE knows every byte
            return 0.0
        ids, _ = self.encode_flat(texts)
        return float((ids == self.unknown_id).mean()) if len(ids) else 0.0

    def unknown_words(self, texts: list[str]) -> list[str]:
        """The words of texts that become [UNK]."""
        if not self.has_special_token("unk"):
            return []
        texts = replace_all_surrogates(texts)
        ids, lengths = self.encode_flat(texts)
        odd = [texts[number] for number in _texts_with(ids == self.unknown_id, lengths)]
        return [
            text[start:end]
            for text, encoding in zip(odd, self.encode_with_offsets(odd), strict=True)
            for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if number == self.unknown_id
        ]

    def compile(self) -> bool:
        """Compile the encoder (Numba), for much text; returns whether threads can then encode in parallel."""
        return self._words.compile()

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text, without special tokens."""
        with panics_as_errors():
            text = self._inner.decode(list(ids))
        if self._chinese_words:
            return BETWEEN_CHINESE.sub("", text)
        spaced = tokenizer_rules.bert_rules(self._rules).get("handle_chinese_chars", False)
        return AROUND_CHARACTERS.sub("", text) if spaced else text

    def fingerprint(self) -> str:
        """Hash of the vocabulary and all rules."""
        extra = json.dumps(self.extra_rules, sort_keys=True) if self.extra_rules else ""
        return hashlib.blake2b((self.to_json() + extra).encode(), digest_size=16).hexdigest()

    def to_json(self) -> str:
        """The text of tokenizer.json, which lacks the `extra_rules`."""
        return self._inner.to_str()

    @classmethod
    def from_json(cls, text: str, **extra: Any) -> "Tokenizer":
        """Build from the text of a tokenizer.json and the `extra_rules`."""
        return cls(tokenizers.Tokenizer.from_str(text), **extra)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tokenizer":
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        # Caches are not pickled.
        return partial(type(self).from_json, special_tokens=self._special_tokens, **self.extra_rules), (self.to_json(),)

    @property
    def extra_rules(self) -> dict[str, Any]:
        """Rules that tokenizer.json cannot express: Chinese word segmentation and phrases."""
        extra: dict[str, Any] = {"chinese_words": True} if self._chinese_words else {}
        return extra | ({"phrases": self._phrase_pairs} if self._phrase_pairs else {})

    @cached_property
    def _phrases(self) -> "Phrases":
        from keel.data.phrases import Phrases  # imports Numba

        pairs = [[pair.split(" ") for pair in each] for each in self._phrase_pairs]
        number = self._inner.token_to_id
        ids = [[(number(a), number(b), number(f"{a}_{b}")) for a, b in each] for each in pairs]
        return Phrases([np.array(each, np.int64).reshape(-1, 3) for each in ids])

    def _special(self, name: str) -> int:
        token = self._special_tokens.get(name)
        if token is None:
            raise KeelError(f"this tokenizer has no {SPECIALS[name]}: use one that has it, or train one with Keel")
        return cast(int, self._inner.token_to_id(token))


def _texts_with(mask: np.ndarray, lengths: np.ndarray) -> list[int]:
    """The numbers of the texts with a token in the mask [tokens]."""
    return np.unique(np.searchsorted(np.cumsum(lengths), np.flatnonzero(mask), side="right")).tolist()
