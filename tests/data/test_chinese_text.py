"""Chinese text on its way into a model, case by case, as docs/chinese.md describes it."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers
from transformers import AutoTokenizer

from keel.data.corpus import Corpus
from keel.data.language_detection import detect_language, is_traditional
from keel.data.tokenizer import Tokenizer
from keel.data.tokenizer_rules import HALF_WIDTH

SIMPLIFIED = ["1998年的ABC公司在北京，用Python3写代码。", "他说：“好！”（20%）", "今天天气很好，我们去公园。"] * 20
KINDS = ["wordpiece", "words", "characters"]


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_of(number) for number in tokenizer.encode(text).ids]


def trained(kind: Any = "auto", texts: list[str] = SIMPLIFIED, **settings: Any) -> Tokenizer:
    return Tokenizer.train(Corpus.of(texts), kind=kind, min_count=1, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_full_width_characters_and_digits_are_those_of_ascii(kind: str) -> None:
    tokenizer = trained(kind)
    wide, narrow = "１９９８年的ＡＢＣ公司在北京", "1998年的ABC公司在北京"
    assert tokenizer.encode(wide) == tokenizer.encode(narrow), "ids, and offsets in the text as it was written"
    assert tokenizer.encode_many([wide] * 3) == tokenizer.encode_many([narrow] * 3)
    assert tokenizer.unknown_share([wide]) == 0
    assert tokenizer.compile() == (kind == "words")
    assert tokenizer.encode_many([wide]) == tokenizer.encode_many([narrow]), "by compiled code"
    assert tokenizer.normalize_word("Ａ１") == ("A1" if kind == "characters" else "a1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_in_full_width_gives_the_same_vocabulary(kind: str) -> None:
    wide = str.maketrans({half: full for full, half in HALF_WIDTH.items()})
    other = trained(kind, [text.translate(wide) for text in SIMPLIFIED])
    assert other.to_json() == trained(kind).to_json()


def test_chinese_punctuation_stays_what_it_is() -> None:
    tokenizer = trained("wordpiece", [*SIMPLIFIED, "ASCII, (one) 20% two!"])
    assert tokens(tokenizer, "，,（(！!") == ["，", ",", "（", "(", "！", "!"]


def test_the_ideographic_space_is_whitespace() -> None:
    assert tokens(trained(), "　今天　天气") == ["今", "天", "天", "气"]


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_full_width_text_alike(kind: str, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    if tokenizer.extra_rules:
        pytest.skip("transformers does not segment words")
    tokenizer.save(tmp_path)
    peer, again = AutoTokenizer.from_pretrained(tmp_path), Tokenizer.load(tmp_path)
    for text in ["１９９８年ＡＢＣ公司", "Ｐｙｔｈｏｎ３写代码"]:
        assert peer(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text).ids == again.encode(text).ids


def test_text_of_other_languages_keeps_its_characters(english_corpus: Path) -> None:
    tokenizer = Tokenizer.train(Corpus(english_corpus), size=500)
    assert isinstance(tokenizer._inner.normalizer, normalizers.BertNormalizer)


def test_lowercasing_includes_full_width_characters() -> None:
    assert tokens(trained(), "ＡＢＣ") == tokens(trained(), "abc")
    cased = trained("words", lowercase=False)
    assert tokens(cased, "ＡＢＣ公司") == ["ABC", "公司"]
    assert tokens(cased, "ａｂｃ公司") == ["[UNK]", "公司"]


def test_traditional_characters_are_other_characters() -> None:
    tokenizer = trained()
    assert tokens(tokenizer, "今天天氣") == ["今", "天", "天", "[UNK]"]
    both = trained(texts=[*SIMPLIFIED, *["今天天氣很好，我們去公園。"] * 20])
    assert tokens(both, "氣气") == ["氣", "气"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("這間酒店環境和服務態度亦算不錯", True),
        ("漢語", True),
        ("今天，我們去吃飯", True),
        ("这间酒店环境和服务态度也算不错", False),
        ("朱镕基在北京大学读书", False),
        ("日本", False),
        ("", False),
    ],
)
def test_traditional_text_is_known_by_what_gb2312_lacks(text: str, found: bool) -> None:
    assert is_traditional(text) == found


def test_words_between_chinese_are_words() -> None:
    assert tokens(trained("words"), "用Python3写代码") == ["用", "python3", "写", "代码"]
    assert tokens(trained(), "用Python3写代码") == ["用", "python3", "写", "代", "码"]


def test_a_mixed_text_is_chinese_from_a_fifth_of_its_characters() -> None:
    assert detect_language("用 Python 和 PyTorch 写代码") == "zh"
    assert detect_language("The word 北京 means northern capital in English") == "en"


def test_japanese_is_not_segmented() -> None:
    events: list[Any] = []
    japanese = ["私は日本語を話します。", "東京に住んでいます。"] * 20
    tokenizer = Tokenizer.train(Corpus.of(japanese), kind="words", min_count=1, on_event=events.append)
    assert "chinese_words" not in tokenizer.extra_rules
    assert any("Japanese" in event.get("text", "") for event in events)
    assert trained(texts=japanese).unknown_share(japanese) == 0, "characters, as for Chinese"
