"""Neighbours, analogies and published tests of word vectors: answers known by hand, and by a slow plain search."""

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from keel.errors import KeelError, UsageError
from keel.explain import neighbours
from keel.explain.neighbours import Neighbour, Space, evaluate_analogies, evaluate_similarity, nearest_texts


def space_of(vectors: dict[str, list[float]]) -> Space:
    return Space(list(vectors), np.array(list(vectors.values()), dtype=np.float32))


# Royal, male, female, fruit, Chinese.
ROYAL: dict[str, list[float]] = {
    "man": [0, 1, 0, 0, 0],
    "woman": [0, 0, 1, 0, 0],
    "king": [3, 1, 0, 0, 0],
    "queen": [3, 0, 1, 0, 0],
    "皇帝": [3, 1, 0, 0, 2],
    "皇后": [3, 0, 1, 0, 2],
    "男": [0, 1, 0, 0, 2],
    "女": [0, 0, 1, 0, 2],
    "apple": [0, 0, 0, 1, 0],
    "pear": [0, 0.1, 0, 2, 0],
    "well-known": [1, 1, 1, 1, 0],
}


@pytest.fixture
def royal() -> Space:
    return space_of(ROYAL)


@pytest.fixture
def random_space() -> Space:
    random = np.random.default_rng(7)
    return Space([f"word{number}" for number in range(300)], random.normal(size=(300, 12)).astype(np.float32))


def words(found: list[Neighbour]) -> list[str]:
    return [neighbour.word for neighbour in found]


def write(folder: Path, text: str, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def plain_cosine(space: Space, x: int, y: int) -> float:
    a, b = space.matrix[x].astype(float), space.matrix[y].astype(float)
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


def plain_analogy(space: Space, plus: list[int], minus: list[int], by: str, among: int = 0) -> list[int]:
    """All candidate rows, the best first: the formulas as they are printed, one word at a time."""

    def worth(x: int) -> float:
        if by == "add":
            return sum(plain_cosine(space, x, p) for p in plus) - sum(plain_cosine(space, x, n) for n in minus)
        above = np.prod([(1 + plain_cosine(space, x, p)) / 2 for p in plus])
        return float(above / np.prod([(1 + plain_cosine(space, x, n)) / 2 + 0.001 for n in minus]))

    return sorted((x for x in range(among or len(space.words)) if x not in plus + minus), key=lambda x: -worth(x))


def test_nearest_words_by_cosine_without_the_word_itself(royal: Space) -> None:
    found = royal.nearest("apple", top=2)
    assert found[0].word == "pear"
    assert found[0].score == pytest.approx(2 / np.sqrt(4.01), abs=1e-6)
    assert found[1].word == "well-known"
    assert found[1].score == pytest.approx(0.5)
    assert words(royal.nearest("apple", top=1, without=["pear", "not a word"])) == ["well-known"]
    assert len(royal.nearest("apple", top=1000)) == len(ROYAL) - 1


def test_nearest_to_a_vector_of_any_length(royal: Space) -> None:
    assert words(royal.nearest(np.array([0, 0, 0, 0.01, 0]), top=2)) == ["apple", "pear"]


def test_a_word_unknown_as_written_is_sought_in_lower_case() -> None:
    space = space_of({"Polish": [1, 0], "polish": [0, 1], "shine": [0, 2], "poland": [2, 0]})
    assert words(space.nearest("Polish", top=1)) == ["poland"]
    assert words(space.nearest("POLISH", top=1)) == ["shine"]


def test_a_vector_of_zeros_is_like_nothing_and_of_equal_words_the_first_counts() -> None:
    space = space_of({"none": [0, 0], "a": [1, 0], "b": [1, 1]})
    assert words(space.nearest("a")) == ["b", "none"]
    assert space.similarity("none", "a") == 0
    assert Space(["a", "b", "a"], np.array([[1, 0], [1, 1], [0, 1]])).similarity("a", "b") == pytest.approx(0.5**0.5)


@pytest.mark.parametrize(
    "expression", ["king - man + woman", "king-man+woman", "+ woman − man ＋ king", "King - Man + Woman"]
)
def test_king_without_man_but_with_woman_is_queen(royal: Space, expression: str) -> None:
    for by in ("add", "multiply"):
        assert royal.analogy(expression, by=by, top=1)[0].word == "queen"


def test_an_analogy_in_chinese_and_as_lists(royal: Space) -> None:
    for expression in ("皇帝 - 男 + 女", "皇帝-男+女", (["皇帝", "女"], ["男"])):
        assert royal.analogy(expression, top=1)[0].word == "皇后"


def test_a_sign_inside_a_word_is_part_of_it(royal: Space) -> None:
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


@pytest.mark.parametrize("by", ["add", "multiply"])
def test_analogies_equal_a_plain_search(random_space: Space, by: Any) -> None:
    for plus, minus in ([[5, 9], [2]], [[1], []], [[], [8]], [[3, 3, 4], [6, 7]]):
        names = [[random_space.words[row] for row in rows] for rows in (plus, minus)]
        found = random_space.analogy((names[0], names[1]), top=20, by=by)
        assert words(found) == [random_space.words[row] for row in plain_analogy(random_space, plus, minus, by)[:20]]


def test_neighbours_equal_a_plain_search(random_space: Space) -> None:
    order = sorted((row for row in range(300) if row != 42), key=lambda row: -plain_cosine(random_space, row, 42))
    found = random_space.nearest("word42", top=299)
    assert words(found) == [random_space.words[row] for row in order]
    assert [one.score for one in found] == pytest.approx([plain_cosine(random_space, x, 42) for x in order], abs=1e-6)


def test_similarity_is_the_cosine(royal: Space) -> None:
    assert royal.similarity("king", "queen") == pytest.approx(0.9)
    assert royal.similarity("man", "woman") == 0


def test_the_odd_one_out(royal: Space) -> None:
    assert royal.odd_one_out(["king", "Apple", "queen", "皇帝"]) == "Apple"


def test_nearest_texts() -> None:
    texts = ["my card is blocked", "where is my parcel", "the card does not work"]
    vectors = np.array([[1.0, 0.1], [0.0, 1.0], [0.9, 0.3]])
    assert words(nearest_texts(vectors, np.array([2.0, 0.2]), texts, top=2)) == [texts[0], texts[2]]
    with pytest.raises(KeelError, match="no word is left"):
        nearest_texts(np.zeros((0, 2)), np.ones(2), [])


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
def test_an_unknown_word_is_named_with_the_nearest_spellings(royal: Space, word: str, offered: list[str]) -> None:
    with pytest.raises(KeelError) as error:
        royal.nearest(word)
    message = str(error.value)
    assert word[:50] in message
    assert len(message) < 250
    assert [known for known in ROYAL if f"{known!r}" in message.partition("mean")[2]] == offered


def test_of_equally_near_spellings_the_most_frequent_three_are_offered() -> None:
    space = Space(["cart", "care", "card", "carp", "dog"], np.eye(5))
    with pytest.raises(KeelError, match="mean 'cart', 'care' or 'card'\\?"):
        space.similarity("dog", "carx")


BAD: dict[str, tuple[Callable[[Space], Any], str]] = {
    "nothing": (lambda space: space.analogy(""), "holds no word"),
    "a sign only": (lambda space: space.analogy(" - "), "holds no word"),
    "no lists": (lambda space: space.analogy(([], [])), "no word to start from"),
    "two signs": (lambda space: space.analogy("king - + man"), "two signs in a row"),
    "a sign at the end": (lambda space: space.analogy("king - man +"), "ends with a sign"),
    "no sign": (lambda space: space.analogy("king man"), "no sign between 'king' and 'man'"),
    "itself": (lambda space: space.analogy("king - king"), "no direction"),
    "unknown": (lambda space: space.analogy("king - mam + woman"), "'mam' is not among the 11 words.*'man'"),
    "none asked": (lambda space: space.nearest("king", top=0), "top is 0"),
    "NaN": (lambda space: space.nearest(np.full(5, np.nan)), "no direction"),
    "width": (lambda space: space.nearest(np.ones(3)), "a vector of 3 numbers was given where the words have 5"),
    "two words": (lambda space: space.odd_one_out(["king", "KING", "man"]), "2 different words"),
    "no words": (lambda space: space.odd_one_out([]), "0 different words"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_questions(royal: Space, name: str) -> None:
    ask, message = BAD[name]
    with pytest.raises(KeelError, match=message):
        ask(royal)


def test_one_distinct_word_has_no_neighbour() -> None:
    space = space_of({"a": [1, 0]})
    assert space.similarity("a", "A") == 1
    for ask in (lambda: space.nearest("a"), lambda: space.analogy("a", by="multiply")):
        with pytest.raises(KeelError, match="no word is left to answer with: there are 1"):
            ask()


@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_vectors_that_are_no_numbers(fault: float) -> None:
    space = space_of({"fine": [1, 0], "broken": [fault, 0]})
    with pytest.raises(KeelError, match="the vector of 'broken' holds NaN or infinity"):
        space.nearest("fine")


def test_as_many_vectors_as_words() -> None:
    with pytest.raises(UsageError, match="2 words need as many vectors, not an array of 3 x 4"):
        Space(["a", "b"], np.zeros((3, 4)))


PAIRS = [("love", "sex", 6.77), ("tiger", "cat", 7.35), ("stock", "phone", 1.62), ("king", "cabbage", 0.23)]


def lines_of(separator: str, form: str = "{}{s}{}{s}{}", end: str = "\n") -> str:
    return "".join(form.format(*pair, s=separator) + end for pair in PAIRS)


SIMLEX = "word1\tword2\tPOS\tSimLex999\tconc(w1)\tSD\n"
FORMATS = {
    "wordsim353.csv": "Word 1,Word 2,Human (mean)\n" + lines_of(","),
    "wordsim353.tab": "# a comment\n\nWord 1\tWord 2\tHuman (mean)\r\n" + lines_of("\t", end="\r\n"),
    "quoted.csv": lines_of(",", '"{}"{s}"{}"{s}{}'),
    "simlex.txt": SIMLEX + lines_of("\t", "{}{s}{}{s}N{s}{}{s}3.5{s}1.2"),
    "annotated.tab": lines_of("\t", "t{s}{}{s}{}{s}{}"),
    "numbered.csv": "id,first,second,score\n" + lines_of(",", "7,{}{s}{}{s}{}"),
    "men.txt": lines_of(" "),
    "men_lemma.txt": lines_of(" ", "{}-n{s}{}-v{s}{}"),
    "rg65.csv": lines_of(";"),
    "rare_words.txt": lines_of("\t", "{}{s}{}{s}{}{s}6{s}7{s}8"),
    "wordsim-240.txt": lines_of("\t").rstrip("\n"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_pairs_in_every_published_form(tmp_path: Path, name: str) -> None:
    events: list[dict[str, Any]] = []
    columns, pairs = neighbours.read_pairs(write(tmp_path, FORMATS[name], name), events.append)
    assert [pair[:3] for pair in pairs] == PAIRS
    assert events == [{"event": "note", "text": f"{tmp_path / name}: {columns}"}]


def test_what_was_found_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, FORMATS["simlex.txt"])
    columns, pairs = neighbours.read_pairs(path)
    wanted = "words in columns 1 ('word1') and 2 ('word2'), score in column 4 ('SimLex999'), separated by tabs"
    assert columns == wanted
    assert pairs[0].where == f"{path}:2"


def test_spearman_on_known_pairs_with_unknown_ones_counted(tmp_path: Path, random_space: Space) -> None:
    random = np.random.default_rng(3)
    rows = random.integers(0, 300, (80, 2))
    truth = np.round(
        random.uniform(0, 10, 80) + 3 * (random_space.units[rows[:, 0]] * random_space.units[rows[:, 1]]).sum(1), 1
    )
    text = "".join(f"Word{a}\tword{b}\t{value}\n" for (a, b), value in zip(rows, truth, strict=True))
    judged = evaluate_similarity(random_space, write(tmp_path, text + "word1\tnobody\t5\nnobody\tnothing\t1\n"))
    cosines = [plain_cosine(random_space, a, b) for a, b in rows]
    wanted: Any = spearmanr(truth, cosines)
    assert judged.spearman.value == pytest.approx(wanted.statistic, abs=1e-5)
    assert judged.spearman.low < judged.spearman.value < judged.spearman.high
    assert (judged.pairs, judged.unknown) == (80, 2)
    assert str(judged).endswith("on 80 pairs, 2 more unknown")


BAD_PAIRS = {
    "": "is empty",
    "# nothing\n\n": "is empty",
    "king queen\n": ":1: this line has not two words and a score",
    "king\tqueen\t1\nking\tman\n": ":2: this line has 2 columns, others have 3",
    "king\tqueen\t1\n\nking\tman\t2\t3\nman\twoman\t5\n": ":3: this line has 4 columns, others have 3",
    "king\tqueen\t1\nking\tman\tmuch\nman\twoman\t5\n": ":2: the score 'much' is no number",
    "king\tqueen\t1\nking\tman\tnan\nman\twoman\t5\n": ":2: the score 'nan' is no number",
    "king\tqueen\tgood\nking\tman\tbad\n": "two columns of words and one of numbers are needed",
    "king\t1\t2\n": "two columns of words and one of numbers are needed",
    "no\tbody\t1\nany\tone\t2\n": "of 2 pairs 0 have vectors",
    "no\tbody\t1\nking\tqueen\t2\n": "of 2 pairs 1 have vectors",
}


@pytest.mark.parametrize("text", BAD_PAIRS)
def test_bad_files_of_pairs(tmp_path: Path, royal: Space, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(KeelError, match=BAD_PAIRS[text]) as error:
        evaluate_similarity(royal, path)
    assert str(error.value).startswith(str(path))


QUESTIONS = """\
//Copyright
: family
man king woman queen
Man Woman King Queen

man king woman nobody
: gram3-comparative
king queen apple man
: suffix\r
男 皇帝 女 皇后\r
"""


def test_analogies_by_section(tmp_path: Path, royal: Space) -> None:
    found = evaluate_analogies(royal, write(tmp_path, QUESTIONS))
    figures = [(part.name, part.right, part.asked, part.unknown) for part in found.sections]
    assert figures == [
        ("family", 2, 2, 1),
        ("gram3-comparative", 0, 1, 0),
        ("suffix", 1, 1, 0),
    ]
    assert (found.semantic.accuracy, found.syntactic.accuracy, found.total.accuracy) == (1, 0.5, 0.75)
    assert str(found) == (
        "semantic 100.0% of 2, 1 more unknown; syntactic 50.0% of 2, 0 more unknown; total 75.0% of 4, 1 more unknown"
    )


def test_only_frequent_words_ask_and_answer(tmp_path: Path, royal: Space) -> None:
    path = write(tmp_path, QUESTIONS)
    found = evaluate_analogies(royal, path, most=4)
    assert (found.words, found.total.asked, found.total.unknown) == (4, 2, 3)
    assert (found.sections[1].asked, found.sections[1].accuracy) == (0, 0)
    assert evaluate_analogies(royal, path, most=0).words == len(ROYAL)
    with pytest.raises(UsageError, match="most is -1"):
        evaluate_analogies(royal, path, most=-1)


@pytest.mark.parametrize("by", ["add", "multiply"])
def test_blocks_of_questions_equal_a_plain_search(
    tmp_path: Path, random_space: Space, monkeypatch: pytest.MonkeyPatch, by: Any
) -> None:
    monkeypatch.setattr(neighbours, "CELLS", 7 * 100)  # 7 questions at a time
    random = np.random.default_rng(5)
    asked: list[list[int]] = []
    for number in range(30):
        a, b, c, other = random.choice(100, 4, replace=False).tolist()
        answer = plain_analogy(random_space, [b, c], [a], by, among=100)[0]
        asked.append([a, b, c, answer if number % 3 else other])  # every third answer is, but for chance, a wrong one
    wanted = sum(plain_analogy(random_space, [b, c], [a], by, among=100)[0] == d for a, b, c, d in asked)
    path = tmp_path / "questions.txt.xz"
    text = "".join(" ".join(random_space.words[row] for row in question) + "\n" for question in asked)
    path.write_bytes(lzma.compress(text.encode()))
    (section,) = evaluate_analogies(random_space, path, most=100, by=by).sections
    assert (section.name, section.right, section.asked) == ("questions", wanted, 30)
    assert 20 <= wanted < 30


BAD_QUESTIONS = {
    "": "holds no questions",
    ": family\n": "holds no questions",
    ": family\nman king woman queen\nman king woman\n": ":3: this line has 3 words, a question has 4",
    ": family\nno body any one\n": "none of 1 questions has all its words among the first 11",
}


@pytest.mark.parametrize("text", BAD_QUESTIONS)
def test_bad_files_of_questions(tmp_path: Path, royal: Space, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(KeelError, match=BAD_QUESTIONS[text]) as error:
        evaluate_analogies(royal, path)
    assert str(error.value).startswith(str(path))


PUBLISHED = {"wordsim/EN-WS-353-ALL": 353, "wordsim/EN-SIMLEX-999": 999, "wordsim/EN-MEN-TR-3k": 3000,
             "wordsim/EN-RW-STANFORD": 2034, "zh/wordsim/240": 240, "zh/wordsim/297": 297}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_pairs(data_dir: Path, name: str) -> None:
    _, pairs = neighbours.read_pairs(data_dir / "tasks" / f"{name}.txt")
    assert len(pairs) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "semantic", "syntactic"),
    [
        ("google_analogies/questions-words", 8869, 10675),
        ("zh/ca8_analogy/CA8/semantic", 7636, 0),
        ("zh/ca8_analogy/CA8/morphological", 0, 10177),
    ],
)
def test_real_questions(data_dir: Path, name: str, semantic: int, syntactic: int) -> None:
    path = data_dir / "tasks" / f"{name}.txt.xz"
    vocabulary = sorted(set(lzma.decompress(path.read_bytes()).decode().split()))
    random = np.random.default_rng(1)
    found = evaluate_analogies(Space(vocabulary, random.normal(size=(len(vocabulary), 8)).astype(np.float32)), path)
    assert (found.semantic.asked, found.syntactic.asked, found.total.unknown) == (semantic, syntactic, 0)
    assert found.total.accuracy < 0.01
