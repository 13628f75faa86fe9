"""Rules of the four kinds of tokenizer (normalizer, pre-tokenizer, model, decoder), and the files that hold them.

Files of model folders: tokenizer.json, BERT's vocab.txt, GPT-2's vocab.json and merges.txt.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, cast

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from keel.data.folder_json import AGAIN, read_json
from keel.errors import KeelError

if TYPE_CHECKING:
    from keel.data.chinese_words import ChineseWords

Kind = Literal["wordpiece", "bpe", "words", "characters"]
Choice = bool | Literal["auto"]

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_SPECIALS = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
END_OF_TEXT = "<|endoftext|>"
MAX_GAP = 1_000_000
"""Ids without a token that a vocabulary may have."""
TOKENIZER_CONFIG: dict[Any, Any] = {
    **dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars"), (bool, NoneType)),
    **{f"{name}_token": (str, {"content": str}, NoneType) for name in SPECIALS},
    "keel": {"chinese_words": bool, "phrases": [[str]]},
}
"""What Keel reads of tokenizer_config.json and special_tokens_map.json."""
HALF_WIDTH = {chr(code + 0xFEE0): chr(code) for code in (*range(48, 58), *range(65, 91), *range(97, 123))}
"""Full-width Latin characters and digits to those of ASCII; punctuation, which Chinese uses in full width, stays."""
WHITESPACE = r" \n\r\t\v\f\x00"
"""fastText's whitespace, as a regular expression: no Unicode spaces."""


def make(
    kind: Kind, model: Any, *, lowercase: bool, accents: bool, cjk: bool = True, half_width: bool = False
) -> tokenizers.Tokenizer:
    """Tokenizer of a model with the rules of its kind: BERT's, GPT-2's, words or characters.

    With `half_width`, full-width Latin characters and digits are those of ASCII, except in byte-level BPE.
    """
    inner = tokenizers.Tokenizer(model)
    if kind == "bpe":
        if lowercase:
            inner.normalizer = normalizers.Lowercase()
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        inner.post_processor = processors.ByteLevel(trim_offsets=False)
        return inner
    rules = normalizers.BertNormalizer(
        handle_chinese_chars=cjk and kind != "characters", strip_accents=not accents, lowercase=lowercase
    )
    inner.normalizer = normalizers.Sequence([*_half_width_rules(), rules]) if half_width else rules
    if kind == "characters":
        inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        inner.decoder = decoders.Fuse()
    else:
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if kind == "wordpiece":
        inner.decoder = decoders.WordPiece(prefix="##")
    return inner


def _half_width_rules() -> list[normalizers.Normalizer]:
    return [normalizers.Replace(full, half) for full, half in HALF_WIDTH.items()]


def bert_rules(rules: dict[str, Any]) -> dict[str, Any]:
    """The fields of the BertNormalizer of a tokenizer.json, also after `HALF_WIDTH`; others unchanged."""
    normalizer = rules["normalizer"] or {}
    parts = normalizer.get("normalizers", [])
    return parts[-1] if is_half_width(rules) and parts[-1]["type"] == "BertNormalizer" else normalizer


def is_half_width(rules: dict[str, Any]) -> bool:
    """Whether the rules of a tokenizer.json begin with `HALF_WIDTH`."""
    parts = (rules["normalizer"] or {}).get("normalizers", [])
    pairs = [(part.get("pattern"), part.get("content")) for part in parts[:-1]]
    return pairs == [({"String": full}, half) for full, half in HALF_WIDTH.items()]


def word_level(
    words: Iterable[str], *, lowercase: bool, accents: bool, cjk: bool, half_width: bool = False
) -> tokenizers.Tokenizer:
    """Word-level tokenizer of the special tokens and these words, with BERT's rules."""
    vocab = {token: number for number, token in enumerate(dict.fromkeys([*SPECIALS.values(), *words]))}
    model = models.WordLevel(vocab, unk_token=SPECIALS["unk"])
    inner = make("words", model, lowercase=lowercase, accents=accents, cjk=cjk, half_width=half_width)
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


def read_tokenizer(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, str] | None, dict[str, Any]]:
    """Read tokenizer.json, else vocab.txt, else vocab.json and merges.txt.

    Returns the tokenizer, its special tokens by name, and what a tokenizer.json cannot express (`extra_rules`).
    """
    config = _read_json(folder / "tokenizer_config.json")
    if unknown := config.get("keel", {}).keys() - TOKENIZER_CONFIG["keel"].keys():
        raise KeelError(f"{folder / 'tokenizer_config.json'}: keel.{min(unknown)} needs a newer version of Keel")
    inner, special_tokens, extra_rules = _read_files(folder, config)
    ids = inner.get_vocab().values()
    if not ids or max(ids) >= MAX_GAP + 2 * len(ids):
        what = f"the largest id is {max(ids):,}, for {len(ids):,} tokens" if ids else "there are no tokens"
        raise KeelError(f"{folder}: the vocabulary of the tokenizer is damaged ({what}): {AGAIN}")
    return inner, special_tokens, extra_rules


def _read_files(
    folder: Path, config: dict[str, Any]
) -> tuple[tokenizers.Tokenizer, dict[str, str] | None, dict[str, Any]]:
    try:
        if (folder / "tokenizer.json").exists():
            inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            return inner, _special_tokens(folder, config, inner), config.get("keel", {})
        if (folder / "vocab.txt").exists():
            strip = config.get("strip_accents")
            inner = read_vocab_txt(
                folder / "vocab.txt",
                lowercase="auto" if (lower := config.get("do_lower_case")) is None else lower,
                accents="auto" if strip is None else not strip,
                cjk=config.get("tokenize_chinese_chars") is not False,
            )
            return inner, None, {}
        for vocabulary, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
            if (folder / vocabulary).exists() and (folder / merges).exists():
                inner = read_merges(folder / vocabulary, folder / merges)
                return inner, _special_tokens(folder, config, inner), {}
    except KeelError:
        raise
    except BaseException as error:  # the tokenizers library raises bare Exception, and panics
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise KeelError(f"the tokenizer in {folder} cannot be read: {error!s:.200}") from None
    what = "no tokenizer.json, no vocab.txt, and no vocab.json with merges.txt"
    raise KeelError(f"{folder} holds {what}: name another folder")


def read_vocab_txt(path: Path, *, lowercase: Choice, accents: Choice, cjk: bool) -> tokenizers.Tokenizer:
    """WordPiece tokenizer of BERT's vocab.txt; lowercase "auto": cased if the vocabulary has capital letters."""
    with open(path, encoding="utf-8") as file:
        vocab = {line.rstrip("\n"): number for number, line in enumerate(file)}
    if SPECIALS["unk"] not in vocab:
        raise KeelError(f"{path} has no [UNK]: is it a BERT vocabulary, one token per line?")
    if lowercase == "auto":
        lowercase = not any(re.search("[A-Z]", token) for token in vocab if token[:1] not in "[<")
    accents = not lowercase if accents == "auto" else accents
    model = models.WordPiece(vocab, unk_token=SPECIALS["unk"])
    inner = make("wordpiece", model, lowercase=lowercase, accents=accents, cjk=cjk)
    return add_special_tokens(inner, SPECIALS.values())


def read_merges(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    """Byte-level BPE tokenizer of GPT-2's vocabulary and merges."""
    vocab = json.loads(vocabulary.read_text(encoding="utf-8"))
    with open(merges, encoding="utf-8") as file:
        pairs = [line.split() for line in file if line.strip() and not line.startswith("#version")]
    model = models.BPE(vocab, cast(list[tuple[str, str]], list(map(tuple, pairs))))
    inner = make("bpe", model, lowercase=False, accents=True)
    add_special_tokens(inner, [END_OF_TEXT, *SPECIALS.values()])
    roberta = {name: token for name, token in ROBERTA_SPECIALS.items() if inner.token_to_id(token) is not None}
    # The space before RoBERTa's mask is part of it.
    inner.add_special_tokens([AddedToken(token, lstrip=name == "mask") for name, token in roberta.items()])
    if roberta.keys() >= {"cls", "sep"}:
        begin, end = ((token, cast(int, inner.token_to_id(token))) for token in (roberta["cls"], roberta["sep"]))
        inner.post_processor = processors.RobertaProcessing(end, begin, add_prefix_space=False)
    return inner


def write_tokenizer(
    folder: Path, inner: tokenizers.Tokenizer, special_tokens: dict[str, str], extra_rules: dict[str, Any]
) -> None:
    """Write the files that `read_tokenizer` and Hugging Face's AutoTokenizer read."""
    folder.mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {f"{name}_token": token for name, token in special_tokens.items()}
    rules = json.loads(inner.to_str())
    kind = tokenizer_kind(rules)
    if kind == "wordpiece":
        normalizer = bert_rules(rules)
        # BertTokenizer of transformers has rules of its own and no others.
        config["tokenizer_class"] = "PreTrainedTokenizerFast" if is_half_width(rules) else "BertTokenizer"
        config["do_lower_case"] = normalizer.get("lowercase", False)
        config["strip_accents"] = normalizer.get("strip_accents")
        config["tokenize_chinese_chars"] = normalizer.get("handle_chinese_chars", False)
        tokens = sorted(inner.get_vocab().items(), key=lambda item: item[1])
        (folder / "vocab.txt").write_text("".join(token + "\n" for token, _ in tokens), encoding="utf-8")
    elif kind == "bpe":
        roberta = special_tokens.get("cls") == ROBERTA_SPECIALS["cls"]
        config["tokenizer_class"] = "RobertaTokenizer" if roberta else "GPT2Tokenizer"
        inner.model.save(str(folder))
    else:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if extra_rules:
        config["keel"] = extra_rules
    if inner.token_to_id(END_OF_TEXT) is not None:
        config |= {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def is_panic(error: BaseException) -> bool:
    """Whether the tokenizers library has panicked: an exception that does not derive from Exception."""
    return type(error).__name__ == "PanicException"


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Report a panic of the tokenizers library, caused by rules that it cannot apply, as an error."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        what = f"the tokenizer's rules cannot be applied to this text ({error!s:.100})"
        raise KeelError(f"{what}: correct tokenizer.json, or use another model") from None


def _read_json(path: Path) -> dict[str, Any]:
    return read_json(path, TOKENIZER_CONFIG) if path.exists() else {}


def _special_tokens(folder: Path, config: dict[str, Any], inner: tokenizers.Tokenizer) -> dict[str, str]:
    """Tokens of a published tokenizer that stand for [PAD], [UNK], [CLS], [SEP] and [MASK]."""
    named = _read_json(folder / "special_tokens_map.json") | config
    tokens = {}
    for name, default in SPECIALS.items():
        usual = default if inner.token_to_id(default) is not None else ROBERTA_SPECIALS[name]
        token = named.get(f"{name}_token") or usual
        tokens[name] = token.get("content", usual) if isinstance(token, dict) else token
    return tokens
