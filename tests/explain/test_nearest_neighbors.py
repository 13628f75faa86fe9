"""Neighbours and analogies: answers known by hand, and by a slow plain search."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keel
from keel.api.model_loading import load_vectors
from keel.errors import KeelError, UsageError
from keel.explain import nearest_neighbors
from keel.explain.nearest_neighbors import Neighbor, VectorSpace
from keel.explain.vector_benchmarks import evaluate_similarity


def space_of(vectors: dict[str, list[float]]) -> VectorSpace:
    return VectorSpace(list(vectors), np.array(list(vectors.values()), dtype=np.float32))


def words(found: list[Neighbor]) -> list[str]:
    return [neighbour.word for neighbour in found]


def test_nearest_words_by_cosine_without_the_word_itself(royal: VectorSpace) -> None:
    found = royal.nearest("apple", top=2)
    assert found[0].word == "pear"
    assert found[0].score == pytest.approx(2 / np.sqrt(4.01), abs=1e-6)
    assert found[1].word == "well-known"
    assert found[1].score == pytest.approx(0.5)
    assert words(royal.nearest("apple", top=1, without=["pear", "not a word"])) == ["well-known"]
    assert len(royal.nearest("apple", top=1000)) == len(royal.words) - 1


def test_nearest_to_a_vector_of_any_length(royal: VectorSpace) -> None:
    assert words(royal.nearest(np.array([0, 0, 0, 0.01, 0]), top=2)) == ["apple", "pear"]


def test_a_word_unknown_as_written_is_sought_in_lower_case() -> None:
    space = space_of({"Polish": [1, 0], "polish": [0, 1], "shine": [0, 2], "poland": [2, 0]})
    assert words(space.nearest("Polish", top=1)) == ["poland"]
    assert words(space.nearest("POLISH", top=1)) == ["shine"]


def test_a_word_unknown_in_lower_case_is_sought_as_the_tokenizer_writes_it(tmp_path: Path) -> None:
    texts = ["Zürich and Bern and Basel"] * 20
    model = keel.pretrain("word2vec", texts, out=tmp_path / "m", min_count=1, held_out=0.0, steps=1, progress=False)
    space = load_vectors(model)
    assert "zurich" in space.words
    assert space.find("Zürich") == space.find("ZÜRICH") == space.find("zurich") is not None
    assert space.find("Genève") is None


def test_a_query_of_several_words_needs_one_of_them_or_a_phrase() -> None:
    space = space_of({"network": [1, 0], "new_york": [0, 1]})
    for query, remedy in {"New York": "did you mean 'New_York'", "new works": "give a single word"}.items():
        with pytest.raises(KeelError, match=f"not in the vocabulary of 2 words: {remedy}"):
            space.nearest(query)
    assert words(space.nearest("New_York")) == ["network"]


def test_a_vector_of_zeros_is_like_nothing_and_of_equal_words_the_first_counts() -> None:
    space = space_of({"none": [0, 0], "a": [1, 0], "b": [1, 1]})
    assert words(space.nearest("a")) == ["b", "none"]
    assert space.similarity("none", "a") == 0
    assert VectorSpace(["a", "b", "a"], np.array([[1, 0], [1, 1], [0, 1]])).similarity("a", "b") == pytest.approx(
        0.5**0.5
    )


@pytest.mark.parametrize(
    "expression", ["king - man + woman", "king-man+woman", "+ woman − man ＋ king", "King - Man + Woman"]
)
def test_king_without_man_but_with_woman_is_queen(royal: VectorSpace, expression: str) -> None:
    for by in ("add", "multiply"):
        assert royal.analogy(expression, by=by, top=1)[0].word == "queen"


def test_an_analogy_in_chinese_and_as_lists(royal: VectorSpace) -> None:
    for expression in ("皇帝 - 男 + 女", "皇帝-男+女", (["皇帝", "女"], ["男"])):
        assert royal.analogy(expression, top=1)[0].word == "皇后"


def test_a_sign_inside_a_word_is_part_of_it(royal: VectorSpace) -> None:
    assert royal.analogy("well-known", top=3) == royal.nearest("well-known", top=3)
    assert {*words(royal.analogy("well-known - apple - man - woman", top=2))} == {"king", "queen"}


def test_one_large_term_wins_by_adding_and_not_by_multiplying() -> None:
    # x is almost b and has nothing of c: 0.99 + 0 - 0 > 0.5 + 0.5 - 0.1, but 0.995 * 0.5 / 0.501 < 0.75 * 0.75 / 0.551.
    rest = [(1 - 0.99**2) ** 0.5, (1 - 0.51) ** 0.5]
    space = space_of(
        {
            "b": [1, 0, 0, 0],
            "c": [0, 1, 0, 0],
            "a": [0, 0, 1, 0],
            "x": [0.99, 0, 0, rest[0]],
            "y": [0.5, 0.5, 0.1, rest[1]],
        }
    )
    assert words(space.analogy("b - a + c")) == ["x", "y"]
    assert space.analogy("b - a + c")[0].score == pytest.approx(0.99 / 3**0.5)
    by_product = space.analogy("b - a + c", by="multiply")
    assert words(by_product) == ["y", "x"]
    assert [found.score for found in by_product] == pytest.approx([0.75**2 / 0.551, 0.995 * 0.5 / 0.501], rel=1e-5)


@pytest.mark.parametrize("block", [12, 12 * 70, 1 << 22])
@pytest.mark.parametrize("by", ["add", "multiply"])
def test_analogies_equal_a_plain_search(
    random_space: VectorSpace,
    by: Any,
    block: int,
    plain_analogy: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nearest_neighbors, "BLOCK", block)  # the search goes over the words in parts
    for plus, minus in ([[5, 9], [2]], [[1], []], [[], [8]], [[3, 3, 4], [6, 7]]):
        names = [[random_space.words[row] for row in rows] for rows in (plus, minus)]
        found = random_space.analogy((names[0], names[1]), top=20, by=by)
        assert words(found) == [random_space.words[row] for row in plain_analogy(random_space, plus, minus, by)[:20]]


def test_neighbours_equal_a_plain_search(random_space: VectorSpace, plain_cosine: Callable[..., float]) -> None:
    order = sorted((row for row in range(300) if row != 42), key=lambda row: -plain_cosine(random_space, row, 42))
    found = random_space.nearest("word42", top=299)
    assert words(found) == [random_space.words[row] for row in order]
    assert [one.score for one in found] == pytest.approx([plain_cosine(random_space, x, 42) for x in order], abs=1e-6)


def test_similarity_is_the_cosine(royal: VectorSpace) -> None:
    assert royal.similarity("king", "queen") == pytest.approx(0.9)
    assert royal.similarity("man", "woman") == 0


def test_the_odd_one_out(royal: VectorSpace) -> None:
    found = royal.odd_one_out(["king", "Apple", "queen", "皇帝"])
    assert found[0] == ("Apple", 0)
    king = np.mean([royal.similarity("king", other) for other in ("apple", "queen", "皇帝")])
    assert dict(found)["king"] == pytest.approx(king)
    assert [one.score for one in found] == sorted(one.score for one in found)


def test_nearest_texts() -> None:
    texts = ["my card is blocked", "where is my parcel", "the card does not work"]
    vectors = np.array([[1.0, 0.1], [0.0, 1.0], [0.9, 0.3]])
    assert words(VectorSpace(texts, vectors).nearest(np.array([2.0, 0.2]), top=2)) == [texts[0], texts[2]]
    with pytest.raises(KeelError, match="no word is left"):
        VectorSpace([], np.zeros((0, 2))).nearest(np.ones(2))


@pytest.mark.parametrize(
    ("word", "offered"),
    [
        ("Kinng", ["king"]),
        ("quen", ["queen"]),
        ("xueen", ["queen"]),
        ("皇地", ["皇帝", "皇后"]),
        ("xyzzyx", []),
        ("", []),
        ("k" * 100_000, []),
    ],
)
def test_unknown_word_error_suggests_similar_words(royal: VectorSpace, word: str, offered: list[str]) -> None:
    with pytest.raises(KeelError) as error:
        royal.nearest(word)
    message = str(error.value)
    assert word[:50] in message
    assert len(message) < 250
    assert [known for known in royal.words if f"{known!r}" in message.partition("mean")[2]] == offered


def test_suggestions_prefer_frequent_words() -> None:
    space = VectorSpace(["cart", "care", "card", "carp", "dog"], np.eye(5))
    with pytest.raises(KeelError, match="mean 'cart', 'care' or 'card'\\?"):
        space.similarity("dog", "carx")


BAD: dict[str, tuple[Callable[[VectorSpace], Any], str]] = {
    "nothing": (lambda space: space.analogy(""), "contains no word"),
    "a sign only": (lambda space: space.analogy(" - "), "contains no word"),
    "no lists": (lambda space: space.analogy(([], [])), "the expression is empty"),
    "two signs": (lambda space: space.analogy("king - + man"), "two signs in a row"),
    "a sign at the end": (lambda space: space.analogy("king - man +"), "ends with a sign"),
    "no sign": (lambda space: space.analogy("king man"), "no sign between 'king' and 'man'"),
    "itself": (lambda space: space.analogy("king - king"), "zero or not finite"),
    "unknown": (lambda space: space.analogy("king - mam + woman"), "'mam' is not in the vocabulary of 11 words.*'man'"),
    "zero answers": (lambda space: space.nearest("king", top=0), "top must be 1 or more"),
    "NaN": (lambda space: space.nearest(np.full(5, np.nan)), "zero or not finite"),
    "width": (lambda space: space.nearest(np.ones(3)), "the vector has 3 dimensions, those of the words have 5"),
    "two words": (lambda space: space.odd_one_out(["king", "KING", "man"]), "2 different words"),
    "no words": (lambda space: space.odd_one_out([]), "0 different words"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_questions(royal: VectorSpace, name: str) -> None:
    ask, message = BAD[name]
    with pytest.raises(KeelError, match=message):
        ask(royal)


def test_one_distinct_word_has_no_neighbour() -> None:
    space = space_of({"a": [1, 0]})
    assert space.similarity("a", "A") == 1
    for ask in (lambda: space.nearest("a"), lambda: space.analogy("a", by="multiply")):
        with pytest.raises(KeelError, match="no word is left: all 1 words"):
            ask()


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_vectors_that_are_no_numbers(fault: float) -> None:
    space = space_of({"fine": [1, 0], "broken": [fault, 0]})
    with pytest.raises(KeelError, match="the vector of 'broken' contains NaN or infinity"):
        space.nearest("fine")


def test_as_many_vectors_as_words() -> None:
    with pytest.raises(UsageError, match="2 words need as many vectors, not an array of 3 x 4"):
        VectorSpace(["a", "b"], np.zeros((3, 4)))


def test_unknown_words_use_subword_vectors(royal: VectorSpace) -> None:
    with_subwords = VectorSpace(
        royal.words, royal.matrix, lambda words: np.array([royal.matrix[royal.row(w[:-1])] for w in words])
    )
    assert with_subwords.similarity("kingx", "king") == pytest.approx(1.0)
    assert with_subwords.nearest("kingx")[0].word == "king"  # only the query itself is excluded
    assert with_subwords.analogy("kingx - manx + womanx")[0].word == "queen"
    assert {one.word for one in with_subwords.odd_one_out(["kingx", "queenx", "man"])} == {"kingx", "queenx", "man"}
    silent = VectorSpace(royal.words, royal.matrix, lambda words: np.zeros((len(words), royal.matrix.shape[1])))
    with pytest.raises(KeelError, match="did you mean"):
        silent.analogy("kingx - man + woman")


def test_pairs_with_subword_vectors_are_known(royal: VectorSpace, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("king\tkingx\t9\nqueen\tman\t2\nking\twoman\t1\n")
    with_subwords = VectorSpace(
        royal.words, royal.matrix, lambda words: np.array([royal.matrix[royal.row(w[:-1])] for w in words])
    )
    assert (evaluate_similarity(with_subwords, path).count, evaluate_similarity(with_subwords, path).unknown) == (3, 0)
    assert (evaluate_similarity(royal, path).count, evaluate_similarity(royal, path).unknown) == (2, 1)
