"""Units of each level: words, phrases of whole words, and entities, which cut both."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from keel.data.corpus import Corpus
from keel.data.masking_units import LEVELS, MaskingUnits
from keel.data.term_matcher import TermMatcher
from keel.data.tokenizer import Tokenizer
from keel.data.word_vocabulary import learn_phrase_list
from keel.events import ignore

PHRASES = TermMatcher(["new york", "fishing boat", "检查渔网", "的省会", "省会,国"], ignore_case=True)
ENTITIES = TermMatcher(["New York Times", "York", "黑龙江", "江的省", "Boat"])
UNITS = MaskingUnits(phrases=PHRASES, entities=ENTITIES)


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "characters", "words"])
def tokenizer(request: pytest.FixtureRequest, english_corpus: Path, chinese_corpus: Path) -> Tokenizer:
    size = 400 if request.param in ("wordpiece", "bpe") else 30_000
    return Tokenizer.train(Corpus([english_corpus, chinese_corpus]), kind=request.param, size=size)


def units_of(tokenizer: Tokenizer, text: str, units: MaskingUnits, before: str = "") -> dict[str, list[str]]:
    """The text of each unit, for each level, after another text."""
    texts = [before, text] if before else [text]
    codes = units.encode(tokenizer, texts).codes
    ids, lengths = tokenizer.encode_flat(texts)
    assert len(codes) == len(ids)
    offsets = tokenizer.encode(text).offsets
    found: dict[str, list[str]] = {}
    for level, name in enumerate(LEVELS):
        starts = [*np.flatnonzero(codes[len(codes) - lengths[-1] :] >> level & 1).tolist(), len(offsets)]
        parts = [(offsets[a][0], offsets[b - 1][1]) for a, b in pairwise(starts)]
        found[name] = [part for start, end in parts if (part := text[start:end].strip())]
    return found


def test_english_units_of_each_level(tokenizer: Tokenizer) -> None:
    found = units_of(tokenizer, "A fishing boat of the New York Times. New Yorkers", UNITS, before="new")
    assert found["word"] == ["A", "fishing", "boat", "of", "the", "New", "York", "Times", ".", "New", "Yorkers"]
    assert found["phrase"] == ["A", "fishing boat", "of", "the", "New York", "Times", ".", "New", "Yorkers"]
    assert found["entity"] == ["A", "fishing boat", "of", "the", "New York Times", ".", "New", "Yorkers"]


def test_chinese_units_of_each_level(english_corpus: Path, chinese_corpus: Path) -> None:
    tokenizer = Tokenizer.train(Corpus([english_corpus, chinese_corpus]), kind="characters")
    found = units_of(tokenizer, "黑龙江的省会,国际 船长检查渔网", UNITS, before="检查渔网")
    assert found["word"] == ["黑龙江", "的", "省会", ",", "国际", "船长", "检查", "渔网"]
    # 省会,国 ends inside a word, so it is no phrase; 黑龙江 begins earlier than 江的省.
    assert found["phrase"] == ["黑龙江", "的省会", ",", "国际", "船长", "检查渔网"]
    assert found["entity"] == ["黑龙江", "的省会", ",", "国际", "船长", "检查渔网"]
    assert units_of(tokenizer, "江的省会", UNITS)["entity"] == ["江的省", "会"]


def test_an_entity_cuts_the_phrases_that_it_overlaps(tokenizer: Tokenizer) -> None:
    assert units_of(tokenizer, "the New York taxi", UNITS)["entity"] == ["the", "New", "York", "taxi"]


def test_a_byte_pair_token_that_reaches_beyond_an_entity_is_no_part_of_it() -> None:
    corpus = Corpus.of(["北京市 " * 40, "上海 " * 40])
    tokenizer = Tokenizer.train(corpus, kind="bpe", size=300)
    assert len(tokenizer.encode("北京市").ids) == 1
    names = MaskingUnits(entities=TermMatcher(["北京", "上海"]))
    assert units_of(tokenizer, "在北京市上海", names)["entity"] == ["在", "北京市", "上海"]
    assert units_of(tokenizer, "北京市", names)["entity"] == ["北京市"]


class Tagger:
    """A model that finds what is given."""

    def __init__(self, spans: list[list[tuple[int, int]]]):
        self.spans = spans

    def find_entities(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        return self.spans

    def fingerprint(self) -> str:
        return "tagger"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ["a b", "c", "d e", "f", "g h", "a b c", "d"]),
        (["c d"], ["a b", "c d", "e", "f", "g h", "a", "b", "c d"]),
        (["b c", "h"], ["a", "b c", "d e", "f", "g", "h", "a", "b c", "d"]),
        (["a b c d e f g h", "a"], ["a b c d e f g h", "a", "b", "c", "d"]),
    ],
)
def test_entities_of_a_model_fill_up_those_of_the_list(names: list[str], expected: list[str]) -> None:
    texts = ["a b c d e f g h", "a b c d"]
    tokenizer = Tokenizer.from_words("abcdefgh")
    tagger = Tagger([[(0, 3), (6, 9), (12, 15)], [(0, 5)]])
    units = MaskingUnits(entities=TermMatcher(names) if names else None, tagger=tagger)
    starts = (units.encode(tokenizer, texts).codes >> 2 & 1).tolist()
    found: list[str] = []
    for token, begins in zip("abcdefghabcd", starts, strict=True):
        found = [*found, token] if begins else [*found[:-1], f"{found[-1]} {token}"]
    assert found == expected


def test_listed_entities_that_occur_are_counted() -> None:
    tokenizer = Tokenizer.train(Corpus.of(["甲乙丙"] * 3), kind="characters")
    names = TermMatcher(["丁", "乙", "甲乙"])
    found = MaskingUnits(entities=names).encode(tokenizer, ["甲乙丙", "丙乙", "乙"]).names
    assert [names.terms[number] for number in found] == ["乙", "甲乙"]


def test_the_fingerprint_depends_on_every_part() -> None:
    names = TermMatcher(["a"])
    different = [
        MaskingUnits(),
        MaskingUnits(phrases=names),
        MaskingUnits(entities=names),
        MaskingUnits(entities=TermMatcher(["b"])),
        MaskingUnits(tagger=Tagger([])),
    ]
    assert len({units.fingerprint() for units in different}) == len(different)
    assert MaskingUnits(entities=TermMatcher(["a"])).fingerprint() == different[2].fingerprint()


def test_texts_without_tokens_have_no_units(tokenizer: Tokenizer) -> None:
    assert len(UNITS.encode(tokenizer, []).codes) == 0
    assert len(UNITS.encode(tokenizer, ["", " ", "\u200b"]).codes) == len(tokenizer.encode_flat(["", " ", "\u200b"])[0])


def test_phrases_are_learned_as_text() -> None:
    rng = np.random.default_rng(0)
    words = [f"w{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(150)]
    share = 1 / np.arange(1, 151)
    lines = []
    for _ in range(1500):
        line = rng.choice(words, 8, p=share / share.sum()).tolist()
        if rng.random() < 0.05:
            line.insert(int(rng.integers(8)), "New York City")
        if rng.random() < 0.03:
            line.insert(int(rng.integers(8)), "Los Angeles")
        lines.append(" ".join(line))
    events: list[dict] = []
    assert learn_phrase_list(Corpus.of(["\n".join(lines)]), 1, ignore) == ["los angeles", "new york"]
    assert learn_phrase_list(Corpus.of(["\n".join(lines)]), 2, events.append) == ["los angeles", "new york city"]
    assert events[-1]["text"].startswith("2 phrases found, the most frequent: new york city")
    alone = [chr(0x4E00 + 20 * number) for number in range(400)]
    texts = ["，".join(rng.choice(alone, 6)) + ("，国际冰雪" if rng.random() < 0.1 else "") for _ in range(600)]
    assert learn_phrase_list(Corpus.of(["\n".join(texts)]), 1, ignore) == ["国际冰雪"]
