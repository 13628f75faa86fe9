import sys
from pathlib import Path

import numpy as np
import pytest

from keel.data import chinese_words
from keel.data.corpus import Corpus
from keel.data.encoding_worker import word_starts
from keel.data.tokenizer import Tokenizer
from keel.errors import MissingExtra


def in_words(tokenizer: Tokenizer, text: str) -> list[list[str]]:
    """The subwords of a text, put together where they are one word."""
    ids, lengths = tokenizer.encode_flat([text])
    found: list[list[str]] = []
    for number, starts in zip(ids.tolist(), word_starts(tokenizer, [text], ids, lengths), strict=True):
        if starts:
            found.append([])
        found[-1].append(tokenizer.token_of(number))
    return found


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] un ##believ ##able the boat , ' s . py ##thon 3 我 在 学 习 使 用 语 言 模"
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(tokens.split()) + "\n", encoding="utf-8")
    return Tokenizer.from_vocabulary(path)


def test_english_words_are_their_subwords(bert: Tokenizer) -> None:
    assert in_words(bert, "The unbelievable boat's, xyz.") == [
        ["the"],
        ["un", "##believ", "##able"],
        ["boat"],
        ["'"],
        ["s"],
        [","],
        ["[UNK]"],
        ["."],
    ]


def test_chinese_words_are_jiebas_with_unknown_and_latin_in_place(bert: Tokenizer) -> None:
    # 题 is unknown: the words after it must not shift.
    assert in_words(bert, "我在学习 Python3,使用语言模型。问题 boat") == [
        ["我"],
        ["在"],
        ["学", "习"],
        ["[UNK]"],
        [","],
        ["使", "用"],
        ["语", "言"],
        ["模", "[UNK]"],
        ["[UNK]"],
        ["[UNK]", "[UNK]"],
        ["boat"],
    ]


def test_other_kinds_have_words_too(english_corpus: Path, chinese_corpus: Path) -> None:
    corpus = Corpus([english_corpus, chinese_corpus])
    characters = Tokenizer.train(corpus, kind="characters")
    assert ["".join(word) for word in in_words(characters, "The boat, 船长检查")] == [
        *("The", " ", "boat", ",", " "),
        *("船长", "检查"),
    ]
    bpe = Tokenizer.train(corpus, kind="bpe", size=300)
    ids, lengths = bpe.encode_flat(["The boat, 船长检查渔网"])
    starts = np.flatnonzero(word_starts(bpe, ["The boat, 船长检查渔网"], ids, lengths))
    assert [bpe.decode(part) for part in np.split(ids, starts[1:])] == [
        "The",
        " boat",
        ",",
        " ",
        "船长",
        "检查",
        "渔网",
    ]


def test_jieba_is_needed_only_for_chinese(bert: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)
    chinese_words._installed.cache_clear()
    assert in_words(bert, "The boat") == [["the"], ["boat"]]
    with pytest.raises(MissingExtra, match=r"needs the package 'jieba': pip install 'keel-nlp\[zh\]'"):
        in_words(bert, "我在学习")
    chinese_words._installed.cache_clear()
