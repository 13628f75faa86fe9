"""Tokenizer files of model folders: tokenizer.json, BERT's vocab.txt, GPT-2's vocab.json and merges.txt."""

import json
import re
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import models

from keel.data import tokenizer_rules
from keel.data.tokenizer_rules import END_OF_TEXT, SPECIALS, Choice
from keel.errors import KeelError


def read_tokenizer(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, str] | None, dict[str, Any]]:
    """Read tokenizer.json, else vocab.txt, else vocab.json and merges.txt.

    Returns the tokenizer, its special tokens by name, and what a tokenizer.json cannot express (`extra_rules`).
    """
    config = _read_json(folder / "tokenizer_config.json")
    try:
        if (folder / "tokenizer.json").exists():
            inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            return inner, _special_tokens(folder, config), config.get("keel", {})
        if (folder / "vocab.txt").exists():
            strip = config.get("strip_accents")
            inner = read_vocab_txt(
                folder / "vocab.txt",
                lowercase=config.get("do_lower_case", "auto"),
                accents="auto" if strip is None else not strip,
                cjk=config.get("tokenize_chinese_chars", True),
            )
            return inner, None, {}
        for vocabulary, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
            if (folder / vocabulary).exists() and (folder / merges).exists():
                return read_merges(folder / vocabulary, folder / merges), None, {}
    except KeelError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception
        raise KeelError(f"the tokenizer in {folder} cannot be read: {error}") from None
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
    inner = tokenizer_rules.make("wordpiece", model, lowercase=lowercase, accents=accents, cjk=cjk)
    return tokenizer_rules.add_special_tokens(inner, SPECIALS.values())


def read_merges(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    """Byte-level BPE tokenizer of GPT-2's vocabulary and merges."""
    vocab = json.loads(vocabulary.read_text(encoding="utf-8"))
    with open(merges, encoding="utf-8") as file:
        pairs = [line.split() for line in file if line.strip() and not line.startswith("#version")]
    model = models.BPE(vocab, cast(list[tuple[str, str]], list(map(tuple, pairs))))
    inner = tokenizer_rules.make("bpe", model, lowercase=False, accents=True)
    return tokenizer_rules.add_special_tokens(inner, [END_OF_TEXT, *SPECIALS.values()])


def write_tokenizer(
    folder: Path, inner: tokenizers.Tokenizer, special_tokens: dict[str, str], extra_rules: dict[str, Any]
) -> None:
    """Write the files that `read_tokenizer` and Hugging Face's AutoTokenizer read."""
    folder.mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {f"{name}_token": token for name, token in special_tokens.items()}
    rules = json.loads(inner.to_str())
    kind = tokenizer_rules.tokenizer_kind(rules)
    if kind == "wordpiece":
        normalizer = rules["normalizer"] or {}
        config["tokenizer_class"] = "BertTokenizer"
        config["do_lower_case"] = normalizer.get("lowercase", False)
        config["strip_accents"] = normalizer.get("strip_accents")
        config["tokenize_chinese_chars"] = normalizer.get("handle_chinese_chars", False)
        tokens = sorted(inner.get_vocab().items(), key=lambda item: item[1])
        (folder / "vocab.txt").write_text("".join(token + "\n" for token, _ in tokens), encoding="utf-8")
    elif kind == "bpe":
        config["tokenizer_class"] = "GPT2Tokenizer"
        inner.model.save(str(folder))
    else:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if extra_rules:
        config["keel"] = extra_rules
    if inner.token_to_id(END_OF_TEXT) is not None:
        config |= {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise KeelError(f"{path} is not JSON: {error}") from None


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Tokens of a published tokenizer that stand for [PAD], [UNK], [CLS], [SEP] and [MASK]."""
    named = _read_json(folder / "special_tokens_map.json") | config
    tokens = {}
    for name, default in SPECIALS.items():
        token = named.get(f"{name}_token") or default
        tokens[name] = token["content"] if isinstance(token, dict) else token
    return tokens
