"""Text to ids and back, on the `tokenizers` library."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import tokenizers
from tokenizers import models

from keel.data import tokenizer_rules
from keel.data.corpus import Corpus
from keel.data.encoding_cache import WordCache
from keel.data.sentence_splitting import CJK, detect_language
from keel.data.text_files import replace_all_surrogates
from keel.data.tokenizer_rules import END_OF_TEXT, SPECIALS, Kind
from keel.data.tokenizer_training import Choice, chinese_words, train_tokenizer, with_spaces
from keel.data.unknown_words import UnknownWords
from keel.errors import KeelError
from keel.events import OnEvent, ignore

if TYPE_CHECKING:
    from keel.data.phrases import Phrases

BETWEEN_CHINESE = re.compile(
    f"(?<=[{CJK}\u3000-\u303f\uff00-\uffef“”‘’…—]) | (?=[{CJK}\u3000-\u303f\uff00-\uffef“”‘’…—])"
)
"""Spaces that Chinese words did not have between them."""
AROUND_CHARACTERS = re.compile(f"(?<=[{CJK}\u3000-\u303f\uff00-\uffef]) | (?=[{CJK}\u3000-\u303f\uff00-\uffef])")
"""Spaces that Chinese characters did not have around them; other scripts keep theirs at quotes and dashes."""
SEVERAL_CHINESE = re.compile(f"[{CJK}]{{2}}")


@dataclass(frozen=True)
class Encoding:
    """A text in pieces: their ids, the (start, end) of each in the text, and the number of each one's word."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    word_ids: list[int]

    def truncate(self, count: int) -> "Encoding":
        """At most so many of them."""
        return Encoding(self.ids[:count], self.offsets[:count], self.word_ids[:count])

    def placed(self, before: np.ndarray) -> "Encoding":
        """Give the pieces with the places that its letters had before spaces were put between them."""
        places = before.tolist()
        offsets = [(places[start], places[end - 1] + 1) if end > start else (0, 0) for start, end in self.offsets]
        return replace(self, offsets=offsets)


class Tokenizer:
    """A vocabulary and the rules that cut text into its pieces, equal to Hugging Face's for the same files."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        specials: dict[str, str] | None = None,
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
        names = specials if specials is not None else SPECIALS
        self._specials = {name: token for name, token in names.items() if inner.token_to_id(token) is not None}
        self._words = WordCache(self._inner, self._rules)
        self._chinese_words, self._joins = chinese_words, phrases
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
        sample: int = 200_000_000,
        seed: int = 0,
        on_event: OnEvent = ignore,
    ) -> "Tokenizer":
        """Learn a vocabulary of at most `size` pieces from a seeded sample of about `sample` bytes of the corpus.

        Words are counted over all of it; those that come less than `min_count` times are left out, and in so many
        passes of `phrases` those that belong together are joined.
        """
        learned = train_tokenizer(corpus, kind, size, lowercase, accents, min_count, phrases, sample, seed, on_event)
        return cls(learned.inner, chinese_words=learned.chinese_words, phrases=learned.phrases)

    @classmethod
    def from_vocabulary(
        cls,
        vocabulary: str | Path,
        *,
        lowercase: Choice = "auto",
        accents: Choice = "auto",
        cjk: bool = True,
    ) -> "Tokenizer":
        """Read BERT's vocab.txt; without being told, a vocabulary that holds capital letters is taken as cased."""
        with open(vocabulary, encoding="utf-8") as file:
            pieces = {line.rstrip("\n"): number for number, line in enumerate(file)}
        if SPECIALS["unk"] not in pieces:
            raise KeelError(f"{vocabulary} has no [UNK]: is it a BERT vocabulary, one piece per line?")
        if lowercase == "auto":
            lowercase = not any(re.search("[A-Z]", piece) for piece in pieces if piece[:1] not in "[<")
        accents = not lowercase if accents == "auto" else accents
        model = models.WordPiece(pieces, unk_token=SPECIALS["unk"])
        inner = tokenizer_rules.make("wordpiece", model, lowercase=lowercase, accents=accents, cjk=cjk)
        return cls(tokenizer_rules.mark_specials(inner, SPECIALS.values()))

    @classmethod
    def from_words(cls, words: Iterable[str]) -> "Tokenizer":
        """One piece for each of these words, after the special ones; without capitals among them, all lower case.

        Where Chinese ones are of several characters, text is cut into words as jieba sees them.
        """
        words = list(words)
        chinese = detect_language("\n".join(words[:10_000])) == "zh" and any(map(SEVERAL_CHINESE.search, words))
        pieces = {piece: number for number, piece in enumerate(dict.fromkeys([*SPECIALS.values(), *words]))}
        lowercase = all(piece == piece.lower() for piece in pieces if piece not in SPECIALS.values())
        model = models.WordLevel(pieces, unk_token=SPECIALS["unk"])
        inner = tokenizer_rules.make("words", model, lowercase=lowercase, accents=True, cjk=not chinese)
        return cls(tokenizer_rules.mark_specials(inner, SPECIALS.values()), chinese_words=chinese)

    @classmethod
    def from_whitespace_words(cls, words: Iterable[str]) -> "Tokenizer":
        """One piece for each of these words, told apart by blanks alone, as fastText does."""
        # No text holds these special pieces, for there is a blank in them: for fastText [UNK] is a word like any other.
        specials = {name: f"{token} " for name, token in SPECIALS.items()}
        pieces = {piece: number for number, piece in enumerate([*specials.values(), *words])}
        return cls(tokenizer_rules.at_blanks(models.WordLevel(pieces, unk_token=specials["unk"])), specials)

    def with_word(self, word: str) -> "Tokenizer":
        """This tokenizer of words with one more, at the end, if it does not know it."""
        if self._inner.token_to_id(word) is not None:
            return self
        form = json.loads(self.to_json())
        form["model"]["vocab"][word] = len(self)
        inner = tokenizers.Tokenizer.from_str(json.dumps(form))
        return type(self)(inner, self._specials, chinese_words=self._chinese_words, phrases=self._joins)

    def with_special_tokens(self, marks: Sequence[str]) -> "Tokenizer":
        """This tokenizer with further special pieces, at the end; those it knows stay."""
        if all(self._inner.token_to_id(mark) is not None for mark in marks):
            return self
        inner = tokenizers.Tokenizer.from_str(self.to_json())
        inner.add_special_tokens(list(marks))
        return type(self)(inner, self._specials, chinese_words=self._chinese_words, phrases=self._joins)

    def special_token_id(self, token: str) -> int | None:
        """Give the id of a piece, if there is one."""
        return self._inner.token_to_id(token)

    @classmethod
    def from_merges(cls, vocabulary: str | Path, merges: str | Path) -> "Tokenizer":
        """Read GPT-2's encoder.json and vocab.bpe (vocab.json and merges.txt)."""
        pieces = json.loads(Path(vocabulary).read_text(encoding="utf-8"))
        with open(merges, encoding="utf-8") as file:
            pairs = [line.split() for line in file if line.strip() and not line.startswith("#version")]
        model = models.BPE(pieces, cast(list[tuple[str, str]], list(map(tuple, pairs))))
        inner = tokenizer_rules.make("bpe", model, lowercase=False, accents=True)
        return cls(tokenizer_rules.mark_specials(inner, [END_OF_TEXT, *SPECIALS.values()]))

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """Read the tokenizer of a model folder: tokenizer.json, else vocab.txt, else vocab.json and merges.txt."""
        folder = Path(folder)
        config = _read_json(folder / "tokenizer_config.json")
        try:
            if (folder / "tokenizer.json").exists():
                inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
                return cls(inner, _specials(folder, config), **config.get("keel", {}))
            if (folder / "vocab.txt").exists():
                lowercase = config.get("do_lower_case", "auto")
                strip = config.get("strip_accents")
                cjk = config.get("tokenize_chinese_chars", True)
                accents = "auto" if strip is None else not strip
                return cls.from_vocabulary(folder / "vocab.txt", lowercase=lowercase, accents=accents, cjk=cjk)
            for vocabulary, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
                if (folder / vocabulary).exists() and (folder / merges).exists():
                    return cls.from_merges(folder / vocabulary, folder / merges)
        except KeelError:
            raise
        except Exception as error:  # the tokenizers library raises bare Exception
            raise KeelError(f"the tokenizer in {folder} cannot be read: {error}") from None
        raise KeelError(
            f"{folder} holds no tokenizer.json, no vocab.txt, and no vocab.json with merges.txt: name another"
        )

    def save(self, folder: str | Path) -> None:
        """Write the files that `load` and Hugging Face's AutoTokenizer read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._inner.save(str(folder / "tokenizer.json"))
        config: dict[str, Any] = {f"{name}_token": token for name, token in self._specials.items()}
        if self.kind == "wordpiece":
            normalizer = self._rules["normalizer"] or {}
            config["tokenizer_class"] = "BertTokenizer"
            config["do_lower_case"] = normalizer.get("lowercase", False)
            config["strip_accents"] = normalizer.get("strip_accents")
            config["tokenize_chinese_chars"] = normalizer.get("handle_chinese_chars", False)
            pieces = sorted(self._inner.get_vocab().items(), key=lambda item: item[1])
            (folder / "vocab.txt").write_text("".join(piece + "\n" for piece, _ in pieces), encoding="utf-8")
        elif self.kind == "bpe":
            config["tokenizer_class"] = "GPT2Tokenizer"
            self._inner.model.save(str(folder))
        else:
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        if self.extra_rules:
            config["keel"] = self.extra_rules
        if self._inner.token_to_id(END_OF_TEXT) is not None:
            config |= {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        # A published vocabulary may name a piece twice, which leaves a hole: ids reach further than pieces.
        return max(self._inner.get_vocab().values()) + 1

    def id_of(self, token: str) -> int:
        """Give the id of a piece; the unknown id where there is no such piece."""
        number = self._inner.token_to_id(token)
        return self.unknown_id if number is None else number

    def token_of(self, number: int) -> str:
        """Give the piece of an id, or the unseen word that was given it."""
        beyond = number - len(self)
        token = self._inner.id_to_token(number) if beyond < 0 else self._unseen.word(beyond)
        if token is None:
            raise KeelError(f"there is no piece {number}: this tokenizer has {len(self)}")
        return token

    def has_special_token(self, name: str) -> bool:
        """Say whether there is a special piece of this name: pad, unk, cls, sep or mask."""
        return name in self._specials

    @property
    def pad_id(self) -> int:
        """The id that fills up short rows."""
        return self._special("pad")

    @property
    def unknown_id(self) -> int:
        """The id of what the vocabulary cannot spell."""
        return self._special("unk")

    @property
    def cls_id(self) -> int:
        """The id that begins a row."""
        return self._special("cls")

    @property
    def sep_id(self) -> int:
        """The id that ends a sentence."""
        return self._special("sep")

    @property
    def end_id(self) -> int:
        """The id that stands between documents: <|endoftext|>, or what ends a sentence where there is none."""
        number = self._inner.token_to_id(END_OF_TEXT)
        return self.sep_id if number is None else number

    @property
    def mask_id(self) -> int:
        """The id of a blank."""
        return self._special("mask")

    @property
    def special_ids(self) -> list[int]:
        """The ids that stand for no text of their own."""
        end = self._inner.token_to_id(END_OF_TEXT)
        return sorted({*(self._special(name) for name in self._specials), *([] if end is None else [end])})

    @property
    def config_token_ids(self) -> dict[str, int]:
        """The ids of its marks by the names that a Hugging Face config.json has for them."""
        ids = {"pad_token_id": self.pad_id} if self.has_special_token("pad") else {}
        end = self._inner.token_to_id(END_OF_TEXT)
        return ids if end is None else ids | {"bos_token_id": end, "eos_token_id": end}

    @cached_property
    def continues_word(self) -> np.ndarray:
        """For every id, whether the piece only ever continues a word ("##ing")."""
        inside = np.zeros(len(self), bool)
        prefix = self._rules["model"].get("continuing_subword_prefix")
        if prefix:
            inside[[number for piece, number in self._inner.get_vocab().items() if piece.startswith(prefix)]] = True
        return inside

    @property
    def lowercase(self) -> bool:
        """Whether capital letters are made small."""
        return bool((self._rules["normalizer"] or {}).get("lowercase", False))

    def encode(self, text: str) -> Encoding:
        """Cut one text into pieces, without [CLS] and [SEP]."""
        return self.encode_with_offsets([text])[0]

    def encode_with_offsets(self, texts: list[str], *, oov_ids: bool = False) -> list[Encoding]:
        """Cut many texts into pieces with their places; with `spell`, unseen words get ids beyond the vocabulary."""
        texts = replace_all_surrogates(texts)
        spaced, places = chinese_words().spaced(texts) if self._chinese_words else (texts, [])
        encodings = self._inner.encode_batch(spaced, add_special_tokens=False)
        found = [Encoding(each.ids, each.offsets, cast(list[int], each.word_ids)) for each in encodings]
        if places:
            found = [pieces.placed(before) for pieces, before in zip(found, places, strict=True)]
        if oov_ids and self.kind == "words":
            self._unseen.begin()
            found = list(map(self._spelled, texts, found))
        return list(map(self._joined, found)) if self._joins else found

    def _joined(self, pieces: Encoding) -> Encoding:
        ids, _, sizes = self._phrases.join(np.array(pieces.ids, np.int32), np.array([len(pieces.ids)]))
        ends = np.cumsum(sizes).tolist()
        starts = [0, *ends[:-1]]
        offsets = [(pieces.offsets[a][0], pieces.offsets[b - 1][1]) for a, b in zip(starts, ends, strict=False)]
        return Encoding(ids.tolist(), offsets, [pieces.word_ids[start] for start in starts[: len(ends)]])

    def encode_many(self, texts: list[str], *, oov_ids: bool = False) -> list[list[int]]:
        """Give the ids alone of many texts, several times faster."""
        ids, lengths = self.encode_flat(texts, oov_ids=oov_ids)
        ends = np.cumsum(lengths).tolist()
        flat = ids.tolist()
        return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _spelled(self, text: str, pieces: Encoding) -> Encoding:
        """Number the words of a text that the vocabulary lacks: the first one ever met comes right after it."""
        ids = list(pieces.ids)
        unknown = self.unknown_id
        for place, (start, end) in enumerate(pieces.offsets):
            if ids[place] == unknown and (word := text[start:end]) != self._specials["unk"]:
                ids[place] = len(self) + self._unseen.number(self._normal(word))
        return replace(pieces, ids=ids)

    def _normal(self, word: str) -> str:
        return self._inner.normalizer.normalize_str(word).strip() if self._inner.normalizer else word

    def encode_words(self, words: list[str], *, oov_ids: bool = False) -> list[list[int]]:
        """Give the ids of each word for itself; words that are known as they stand, or can be spelled, stay whole."""
        words = replace_all_surrogates(words)
        # Byte-level pieces know a word by the blank before it.
        found = self.encode_many([f" {word}" for word in words] if self.kind == "bpe" else words)
        if self.kind == "words":
            self._unseen.begin()
            for place, word in enumerate(words):
                whole = "".join(self._normal(word).split())  # there may be blanks around Chinese characters
                number = self._inner.token_to_id(whole) if whole else None
                if number is not None or (oov_ids and whole):
                    found[place] = [len(self) + self._unseen.number(whole) if number is None else number]
        return found

    def encode_flat(self, texts: list[str], *, oov_ids: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Give the ids of many texts in one array [ids] int32, and how many each text has [texts]."""
        texts = replace_all_surrogates(texts)
        ids, lengths = self._words.encode(with_spaces(texts) if self._chinese_words else texts)
        if self._joins:
            ids, lengths, _ = self._phrases.join(ids, lengths)
        if not oov_ids or self.kind != "words" or not (unknown := ids == self.unknown_id).any():
            return ids, lengths
        ends = np.cumsum(lengths)
        parts = np.split(ids, ends[:-1])
        odd = np.unique(np.searchsorted(ends, np.flatnonzero(unknown), side="right")).tolist()
        for number, pieces in zip(odd, self.encode_with_offsets([texts[n] for n in odd], oov_ids=True), strict=True):
            parts[number] = np.array(pieces.ids, np.int32)
        return np.concatenate(parts), np.fromiter(map(len, parts), np.int64, len(parts))

    def unknown_share(self, texts: list[str]) -> float:
        """Say what share of the pieces of texts is [UNK]."""
        if not self.has_special_token("unk") or self.kind == "bpe":  # which spells what it does not know byte by byte
            return 0.0
        ids, _ = self.encode_flat(texts)
        return float((ids == self.unknown_id).mean()) if len(ids) else 0.0

    def unknown_words(self, texts: list[str]) -> list[str]:
        """Give the words of texts, as they stand there, that become [UNK]."""
        if not self.has_special_token("unk"):
            return []
        texts = replace_all_surrogates(texts)
        ids, lengths = self.encode_flat(texts)
        places = np.searchsorted(np.cumsum(lengths), np.flatnonzero(ids == self.unknown_id), side="right")
        odd = [texts[number] for number in np.unique(places).tolist()]
        return [
            text[start:end]
            for text, pieces in zip(odd, self.encode_with_offsets(odd), strict=True)
            for number, (start, end) in zip(pieces.ids, pieces.offsets, strict=True)
            if number == self.unknown_id
        ]

    def compile(self) -> bool:
        """Get ready for much text, and say whether several threads may then encode at once, which processes would not
        do faster."""
        return self._words.compile()

    def decode(self, ids: Iterable[int]) -> str:
        """Write ids as text again, special ones left out."""
        text = self._inner.decode(list(ids))
        if self._chinese_words:
            return BETWEEN_CHINESE.sub("", text)
        apart = (self._rules["normalizer"] or {}).get("handle_chinese_chars", False)
        return AROUND_CHARACTERS.sub("", text) if apart else text

    def fingerprint(self) -> str:
        """Hash the vocabulary and all rules."""
        own = json.dumps(self.extra_rules, sort_keys=True) if self.extra_rules else ""
        return hashlib.blake2b((self.to_json() + own).encode(), digest_size=16).hexdigest()

    def to_json(self) -> str:
        """Give the tokenizer as the text of tokenizer.json, which knows neither phrases nor Chinese words."""
        return self._inner.to_str()

    @classmethod
    def from_json(cls, text: str, **own: Any) -> "Tokenizer":
        """Make the tokenizer from the text of a tokenizer.json and, if it has any, its `own_rules`."""
        return cls(tokenizers.Tokenizer.from_str(text), **own)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Tokenizer":
        return self  # whoever copies a network goes on with the same words

    def __reduce__(self) -> tuple[Any, ...]:
        # What it remembers of texts is for this process alone.
        return _restored, (type(self), self.to_json(), self._specials, self.extra_rules)

    @property
    def extra_rules(self) -> dict[str, Any]:
        """What a tokenizer.json cannot say, as it is saved."""
        own: dict[str, Any] = {"chinese_words": True} if self._chinese_words else {}
        return own | ({"phrases": self._joins} if self._joins else {})

    @cached_property
    def _phrases(self) -> "Phrases":
        from keel.data.phrases import Phrases  # not sooner: it brings Numba

        pairs = [[pair.split(" ") for pair in each] for each in self._joins]
        number = self._inner.token_to_id
        ids = [[(number(a), number(b), number(f"{a}_{b}")) for a, b in each] for each in pairs]
        return Phrases([np.array(each, np.int64).reshape(-1, 3) for each in ids])

    def _special(self, name: str) -> int:
        token = self._specials.get(name)
        if token is None:
            raise KeelError(f"this tokenizer has no {SPECIALS[name]}: use one that has it, or learn one with Keel")
        return cast(int, self._inner.token_to_id(token))


def _restored(kind: type[Tokenizer], text: str, specials: dict[str, str], own: dict[str, Any]) -> Tokenizer:
    return kind.from_json(text, specials=specials, **own)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise KeelError(f"{path} is not JSON: {error}") from None


def _specials(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Find out which pieces of a published tokenizer stand for [PAD], [UNK], [CLS], [SEP] and [MASK]."""
    named = _read_json(folder / "special_tokens_map.json") | config
    found = {}
    for name, usual in SPECIALS.items():
        token = named.get(f"{name}_token") or usual
        found[name] = token["content"] if isinstance(token, dict) else token
    return found
