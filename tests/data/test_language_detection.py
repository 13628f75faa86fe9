"""Detection of a text's language."""

import gzip
import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from keel.data.language_detection import detect_language, is_unspaced

SENTENCES = {
    "en": "The farmer who lives in the valley has not seen any of them.",
    "de": "Der Bauer, der im Tal wohnt, hat keinen von ihnen gesehen.",
    "fr": "Le fermier qui habite dans la vallée n'a vu aucun d'entre eux.",
    "es": "El campesino que vive en el valle no ha visto a ninguno de ellos.",
    "ru": "Крестьянин, живущий в долине, никого из них не видел.",
    "zh": "住在山谷里的农夫没有看见他们。",
    "ja": "谷に住む農夫は誰も見なかった。",
    "ko": "골짜기에 사는 농부는 그들을 보지 못했다.",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_of_eight_languages(language: str) -> None:
    sentence = SENTENCES[language]
    assert detect_language(sentence) == language
    assert detect_language(sentence.upper()) == language
    assert detect_language(f"{sentence}\n" * 10_000) == language


@pytest.mark.parametrize(
    "text",
    ["Ο αγρότης δεν είδε κανέναν.", "किसान ने किसी को नहीं देखा।", "Người nông dân sống trong thung lũng không thấy ai.",
     "Фермерът, който живее в долината, не е видял никого.", "Çiftçi vadide yaşıyor ve kimseyi görmedi."],
)  # fmt: skip
def test_other_languages_are_named_other(text: str) -> None:
    assert detect_language(text) == "other"


def test_a_text_that_shows_too_little_has_no_language() -> None:
    for text in ("", "42 + 1", "Tokyo", "xyzzy plugh qwert"):
        assert detect_language(text) == ""


def test_mixed_texts_have_the_language_of_their_script() -> None:
    assert detect_language("The word 数学 means mathematics.") == "en"
    assert detect_language("我在Google上搜索Python的文档。") == "zh"
    assert detect_language("日本語の「の」は助詞です。") == "ja"
    assert detect_language("这个の字是日语，中文文章里偶尔也会出现这样的写法，但它仍然是中文。") == "zh"
    assert is_unspaced("谷に住む農夫は誰も見なかった。")
    assert not is_unspaced("골짜기에 사는 농부는 그들을 보지 못했다.")


def _xnli(path: Path) -> Iterator[str]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            yield from (row["premise"], row["hypothesis"])


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "ru", "zh"])
def test_accuracy_on_sentences_of_xnli(language: str, data_dir: Path) -> None:
    texts = [*dict.fromkeys(_xnli(data_dir / "tasks" / "xnli_dev" / f"{language}.jsonl.xz"))]
    assert sum(detect_language(text) == language for text in texts) >= 0.98 * len(texts)


@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_accuracy_on_captions(language: str, data_dir: Path) -> None:
    with gzip.open(data_dir / "tasks" / "multi30k" / f"val.{language}.gz", "rt", encoding="utf-8") as file:
        texts = file.read().splitlines()
    assert sum(detect_language(text) == language for text in texts) >= 0.98 * len(texts)


@pytest.mark.parametrize("language", ["ja", "ko"])
def test_accuracy_on_paragraphs_of_corpora(language: str, data_dir: Path) -> None:
    with lzma.open(data_dir / "corpora" / f"multi_{language}.txt.xz", "rt", encoding="utf-8") as file:
        texts = [line for line in file.read(500_000).splitlines() if len(line) > 100]
    assert sum(detect_language(text) == language for text in texts) >= 0.99 * len(texts)
