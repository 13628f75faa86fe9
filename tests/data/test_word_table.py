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


def made(**manner: bool) -> WordSplitter:
    settings = {"lowercase": True, "accents": False} | manner
    return WordSplitter(tokenizer_rules.make("words", models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"), **settings))


def counted(found: WordTable) -> Counter[str]:
    return Counter(dict(zip(found.words(), found.counts.tolist(), strict=True)))


def lines(count: int) -> list[str]:
    """Words of all lengths, some common, with letters of many scripts among them."""
    draw = random.Random(0)
    letters = "abcdefg ABC éÉß 中文ㄱ가각 .,! İ\t\u0301\u00ad\U00020000"
    known = ["the", "Naïve", "internationalization", "incomprehensibilities", "x" * 7, "x" * 8, "数学", "don't"]

    def bit() -> str:
        return draw.choice(known) + " " if draw.random() < 0.5 else draw.choice(letters)

    return ["".join(bit() for _ in range(draw.randrange(60))) for _ in range(count)]


@pytest.mark.parametrize("manner", [{}, {"accents": True}, {"lowercase": False, "accents": True}, {"cjk": False}])
@pytest.mark.parametrize("workers", [1, 3])
def test_counts_are_those_of_the_librarys_words(manner: dict[str, bool], workers: int) -> None:
    cut = made(**manner)
    texts = [*lines(600), f"one {UNSUPPORTED}\ntwo words", "", " "]
    chunks = [texts[start : start + 50] for start in range(0, len(texts), 50)]
    found = count_words(chunks, list, cut, workers)
    expected = Counter(word for text in texts for word in cut.by_library(text))
    assert counted(found.table) == expected
    assert found.floor == 0
    assert found.table.words() == count_words(chunks, list, cut, 1).table.words()


def test_a_text_of_which_the_code_is_not_sure_is_left_to_the_library() -> None:
    assert made().split(["a b", f"a {UNSUPPORTED} b", "c"]).lengths.tolist() == [2, -1, 1]


def test_many_words_take_room_as_they_come() -> None:
    words = [f"{number:x}" * (1 + number % 5) for number in range(30_000)]
    found = count_words([words[start : start + 1000] for start in range(0, 30_000, 1000)], list, made(), 1)
    assert counted(found.table) == Counter(words)
    places = found.table.find(made().split([f"{words[42]} no2such2word {words[9999]} 0"])).tolist()
    assert places == [found.table.words().index(words[42]), -1, found.table.words().index(words[9999]), 0]


def test_memory_is_bounded_by_giving_up_the_rarest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_table, "MAX_WORDS", 100)
    chunks = [
        ["common words come again " + " ".join(f"rare{part}x{number}" for number in range(60))] for part in range(9)
    ]
    found = count_words(chunks, list, made(), 2)
    assert found.floor >= 1
    assert found.table.size <= 100
    assert counted(found.table)["again"] == 9


def test_a_run_of_letters_without_end_is_no_word() -> None:
    found = count_words([["x" * 100_000 + " word " + "y" * 1000]], list, made(), 1)
    assert counted(found.table) == {"word": 1, "y" * 1000: 1}
    assert found.long == 1
    strange = count_words([["word \u0378 " + "x" * 1001 + " y"]], list, made(), 1)  # left to the library
    assert (counted(strange.table)["y"], strange.long) == (1, 1)


def test_words_that_share_a_hash_are_told_apart() -> None:
    """Of two long words with one key, each is found by its letters."""
    cut = made().split(["incomprehensible incommensurables incomprehensible"])
    cut.keys[:] = cut.keys[0]
    table = WordTable.of(cut)
    assert counted(table) == {"incomprehensible": 2, "incommensurables": 1}
    assert np.array_equal(table.find(cut), [0, 1, 0])


def test_a_letter_that_two_threads_ask_for_is_learned_once() -> None:
    """One that cuts meanwhile would look up a part that was not there when it began."""
    cut = made(cjk=False)
    asked: list[int] = []

    class Overtaken(nullcontext[None]):
        """The lock, for which another thread was faster."""

        def __enter__(self) -> None:
            if not asked:
                asked.append(0)
                cut.split(["가"])
                asked.append(int(cut._actions[ord("가")]))

    cut._lock = Overtaken()  # pyright: ignore[reportAttributeAccessIssue]
    cut.split(["가"])
    assert cut._actions[ord("가")] == asked[1]
    assert len(cut._several) == 1
