"""Chinese words are jieba's, and later text is cut as the corpus was."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from keel.data import chinese_words
from keel.data.chinese_words import ChineseWords
from keel.data.corpus import Corpus
from keel.data.text_files import open_text
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import MissingExtra


@pytest.fixture(scope="module")
def words() -> ChineseWords:
    return ChineseWords.installed("a test")


def split_into_words(words: ChineseWords, text: str) -> list[str]:
    _, starts = words.starts([text])
    return [
        "".join(part) for part in np.split(np.array(list(text), dtype="<U1"), np.flatnonzero(starts)[1:]) if len(part)
    ]


def by_jieba(text: str) -> list[str]:
    import jieba

    jieba.setLogLevel("ERROR")
    return jieba.lcut(text)


def test_words_are_jiebas_on_made_up_text(words: ChineseWords) -> None:
    rng = random.Random(0)
    characters = "数学的一是在不了有和人这中大为上个国我以要他时来用们abcXYZ0189.%+-_#& \n\r，。㐀々あ"
    texts = ["".join(rng.choice(characters) for _ in range(rng.randrange(60))) for _ in range(1000)]
    texts += ["AT&T和C++的T恤卡拉OK 3.14%", "他来到了网易杭研大厦", "a\r\nb", "\r\n中", "。" * 50, "的" * 500, ""]
    # A trailing NUL would be lost by numpy's strings; none is among these characters.
    assert [split_into_words(words, text) for text in texts] == [by_jieba(text) for text in texts]


def test_words_are_jiebas_on_real_text(words: ChineseWords, data_dir: Path) -> None:
    file = iter(open_text(data_dir / "corpora/zh_wikipedia.txt.xz"))
    texts = [next(file)[1] for _ in range(800)]
    assert sum(map(len, texts)) > 50_000
    wrong = [text for text in texts if split_into_words(words, text) != by_jieba(text)]
    assert not wrong, f"{len(wrong)} lines differ, the first is {wrong[0][:200]!r}"


def test_spaces_come_between_chinese_words_only(words: ChineseWords) -> None:
    texts = ["我在学习 Python3,使用语言模型。Ångström's 3.14", "", "abc", "中国 人民", "模型"]
    spaced, positions = words.spaced(texts)
    assert spaced == ["我 在 学习 Python3, 使用 语言 模型 。Ångström's 3.14", "", "abc", "中国 人民", "模型"]
    for text, wider, before in zip(texts, spaced, positions, strict=True):
        assert all(text[place] == character for place, character in zip(before, wider, strict=True) if character != " ")


@pytest.fixture(scope="module")
def tokenizer(chinese_corpus: Path) -> Tokenizer:
    return Tokenizer.train(Corpus(chinese_corpus), kind="words")


def test_a_vocabulary_of_chinese_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "船长检查渔网。 Anna"
    encoding = tokenizer.encode(text)
    assert [tokenizer.token_of(number) for number in encoding.ids][:4] == ["船长", "检查", "渔网", "。"]
    assert [text[start:end] for start, end in encoding.offsets] == ["船长", "检查", "渔网", "。", "Anna"]
    assert tokenizer.encode_many([text]) == [encoding.ids]
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.encode(text) == encoding
    assert again.fingerprint() == tokenizer.fingerprint()
    plain = Tokenizer.from_json(tokenizer.to_json())
    assert plain.encode_many(["船长 检查 渔网 。 Anna"]) == [encoding.ids]
    assert plain.fingerprint() != tokenizer.fingerprint()


def test_files_of_chinese_word_vectors_segment_text_into_words() -> None:
    several = Tokenizer.from_words(["船长", "检查", "的", "渔网"])
    assert several.encode_many(["船长检查渔网"]) == [[5, 6, 8]]
    single = Tokenizer.from_words(["船", "长"])
    assert single.encode_many(["船长"]) == [[5, 6]]


def test_tokens_of_chinese_words(tokenizer: Tokenizer, chinese_corpus: Path, tmp_path: Path) -> None:
    tokens = Tokens.build(Corpus(chinese_corpus), tokenizer, tmp_path)
    assert tokens.unknown_share == 0
    assert tokenizer.id_of("船长") in tokens.ids


def test_without_jieba_the_extra_is_named(chinese_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)
    chinese_words._installed.cache_clear()
    with pytest.raises(MissingExtra, match=r"Chinese word segmentation needs .*'jieba': pip install 'keel-nlp\[zh\]'"):
        Tokenizer.train(Corpus(chinese_corpus), kind="words")
    chinese_words._installed.cache_clear()
