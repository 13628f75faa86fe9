"""Words split, counted and looked up by compiled code are those of the library."""

import random
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
from tokenizers import models

from keel.data import tokenizer_rules, word_table
from keel.data.word_splitting import WordSplitter
from keel.data.word_table import WordTable, count_words

UNSUPPORTED = "\u1b44"  # a sign of Bali that changes places with its neighbours


def make_splitter(**manner: bool) -> WordSplitter:
    settings = {"lowercase": True, "accents": False} | manner
    return WordSplitter(tokenizer_rules.make("words", models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"), **settings))


def count_of_words(found: WordTable) -> Counter[str]:
    return Counter(dict(zip(found.words(), found.counts.tolist(), strict=True)))


def lines(count: int) -> list[str]:
    """Words of all lengths, some common, with characters of many scripts among them."""
    rng = random.Random(0)
    characters = "abcdefg ABC éÉß 中文ㄱ가각 .,! İ\t\u0301\u00ad\U00020000"
    known = ["the", "Naïve", "internationalization", "incomprehensibilities", "x" * 7, "x" * 8, "数学", "don't"]

    def bit() -> str:
        return rng.choice(known) + " " if rng.random() < 0.5 else rng.choice(characters)

    return ["".join(bit() for _ in range(rng.randrange(60))) for _ in range(count)]


@pytest.mark.parametrize("manner", [{}, {"accents": True}, {"lowercase": False, "accents": True}, {"cjk": False}])
@pytest.mark.parametrize("workers", [1, 3])
def test_counts_are_those_of_the_librarys_words(manner: dict[str, bool], workers: int) -> None:
    cut = make_splitter(**manner)
    texts = [*lines(600), f"one {UNSUPPORTED}\ntwo words", "", " "]
    chunks = [texts[start : start + 50] for start in range(0, len(texts), 50)]
    found = count_words(chunks, list, cut, workers)
    expected = Counter(word for text in texts for word in cut.by_library(text))
    assert count_of_words(found.table) == expected
    assert found.floor == 0
    assert found.table.words() == count_words(chunks, list, cut, 1).table.words()


def test_a_text_of_which_the_code_is_not_sure_is_left_to_the_library() -> None:
    assert make_splitter().split(["a b", f"a {UNSUPPORTED} b", "c"]).lengths.tolist() == [2, -1, 1]


def test_many_words_take_room_as_they_come() -> None:
    words = [f"{number:x}" * (1 + number % 5) for number in range(30_000)]
    found = count_words([words[start : start + 1000] for start in range(0, 30_000, 1000)], list, make_splitter(), 1)
    assert count_of_words(found.table) == Counter(words)
    numbers = found.table.find(make_splitter().split([f"{words[42]} no2such2word {words[9999]} 0"])).tolist()
    assert numbers == [found.table.words().index(words[42]), -1, found.table.words().index(words[9999]), 0]


def test_memory_is_bounded_by_giving_up_the_rarest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_table, "MAX_WORDS", 100)
    chunks = [
        ["common words come again " + " ".join(f"rare{part}x{number}" for number in range(60))] for part in range(9)
    ]
    found = count_words(chunks, list, make_splitter(), 2)
    assert found.floor >= 1
    assert found.table.size <= 100
    assert count_of_words(found.table)["again"] == 9


def test_a_run_of_characters_without_end_is_no_word() -> None:
    found = count_words([["x" * 100_000 + " word " + "y" * 1000]], list, make_splitter(), 1)
    assert count_of_words(found.table) == {"word": 1, "y" * 1000: 1}
    assert found.long == 1
    strange = count_words([["word \u0378 " + "x" * 1001 + " y"]], list, make_splitter(), 1)  # left to the library
    assert (count_of_words(strange.table)["y"], strange.long) == (1, 1)


def test_words_that_share_a_hash_are_distinguished() -> None:
    """Two long words with one key are each found by their characters."""
    cut = make_splitter().split(["incomprehensible incommensurables incomprehensible"])
    cut.keys[:] = cut.keys[0]
    table = WordTable.of(cut)
    assert count_of_words(table) == {"incomprehensible": 2, "incommensurables": 1}
    assert np.array_equal(table.find(cut), [0, 1, 0])


def test_a_character_that_two_threads_need_is_learned_once() -> None:
    """One that cuts meanwhile would look up a part that was not there when it began."""
    cut = make_splitter(cjk=False)
    queried: list[int] = []

    class Overtaken(nullcontext[None]):
        """The lock, for which another thread was faster."""

        def __enter__(self) -> None:
            if not queried:
                queried.append(0)
                cut.split(["가"])
                queried.append(int(cut._actions[ord("가")]))

    cut._lock = Overtaken()  # pyright: ignore[reportAttributeAccessIssue]
    cut.split(["가"])
    assert cut._actions[ord("가")] == queried[1]
    assert len(cut._several) == 1
