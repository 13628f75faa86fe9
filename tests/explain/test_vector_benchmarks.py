"""Published tests of word vectors: every published form is read, and the figures are those of a slow plain search."""

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from keel.data.word_benchmarks import published_form, read_pairs
from keel.errors import KeelError, UsageError
from keel.explain import vector_benchmarks
from keel.explain.nearest_neighbors import VectorSpace
from keel.explain.vector_benchmarks import evaluate_analogies, evaluate_similarity, evaluate_vectors


def write(folder: Path, text: str, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


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
    "scws.txt": lines_of("\t", "7{s}{}{s}n{s}{}{s}v{s}<b> it </b> is{s}so it <b> was </b>{s}{}{s}10.0{s}0.0"),
    "wordsim-240.txt": lines_of("\t").rstrip("\n"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_pairs_in_every_published_form(tmp_path: Path, name: str) -> None:
    events: list[dict[str, Any]] = []
    columns, pairs = read_pairs(write(tmp_path, FORMATS[name], name), events.append)
    assert [(pair.text, pair.second, pair.label) for pair in pairs] == PAIRS
    assert events == [{"event": "note", "text": f"{tmp_path / name}: {columns}"}]


@pytest.mark.parametrize("name", FORMATS)
def test_pair_columns_are_detected_by_content(tmp_path: Path, name: str) -> None:
    assert published_form(write(tmp_path, FORMATS[name], name)) == "pairs"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("text\tlabel\na fine film that I liked\t1\nthe film was bad\t0\n", ""),
        ("sentence1\tsentence2\tscore\na man eats\ta man is eating\t4.8\nit rains\tthe sun shines\t0.2\n", ""),
        ("__label__good a fine film\n__label__bad no film at all\n", ""),
        ("", ""),
        ("man king woman queen\n男 皇帝 女 皇后\n", "questions"),
        ("//Copyright\n: family\nman king woman\n", "questions"),
        ("king\tqueen\t1\nking\tman\tmuch\nman\twoman\t5\n", "pairs"),
    ],
)
def test_labelled_examples_are_no_published_form(tmp_path: Path, text: str, form: str) -> None:
    path = write(tmp_path, text)
    assert published_form(path) == form


def test_either_form_is_judged(tmp_path: Path, royal: VectorSpace) -> None:
    assert evaluate_vectors(royal, write(tmp_path, QUESTIONS)).main == "accuracy"
    assert evaluate_vectors(royal, write(tmp_path, "king\tqueen\t9\nking\tapple\t1\n")).main_value == 1


def test_detected_columns_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path, FORMATS["simlex.txt"])
    columns, pairs = read_pairs(path)
    wanted = "words in columns 1 ('word1') and 2 ('word2'), score in column 4 ('SimLex999'), separated by tabs"
    assert columns == wanted
    assert pairs[0].location == f"{path}:2"


def test_spearman_on_known_pairs_with_unknown_ones_counted(
    tmp_path: Path, random_space: VectorSpace, plain_cosine: Callable[..., float]
) -> None:
    random = np.random.default_rng(3)
    rows = random.integers(0, 300, (80, 2))
    truth = np.round(
        random.uniform(0, 10, 80) + 3 * (random_space.units(rows[:, 0]) * random_space.units(rows[:, 1])).sum(1), 1
    )
    text = "".join(f"Word{a}\tword{b}\t{value}\n" for (a, b), value in zip(rows, truth, strict=True))
    found = evaluate_similarity(random_space, write(tmp_path, text + "word1\tnobody\t5\nnobody\tnothing\t1\n"))
    cosines = [plain_cosine(random_space, a, b) for a, b in rows]
    wanted: Any = spearmanr(truth, cosines)
    spearman: Any = found.values["spearman"]
    assert spearman.value == found.main_value == pytest.approx(wanted.statistic, abs=1e-5)
    assert spearman.low < spearman.value < spearman.high
    assert (found.count, found.unknown) == (80, 2)
    assert str(found).endswith("on 80 pairs, 2 more unknown")
    found.write(tmp_path / "out")
    assert '"unknown": 2' in (tmp_path / "out" / "scores.json").read_text()


BAD_PAIRS = {
    "": "is empty",
    "# nothing\n\n": "is empty",
    "king queen\n": ":1: this line is not two words and a score",
    "king\tqueen\t1\nking\tman\n": ":2: this line has 2 columns, the others have 3",
    "king\tqueen\t1\n\nking\tman\t2\t3\nman\twoman\t5\n": ":3: this line has 4 columns, the others have 3",
    "king\tqueen\t1\nking\tman\tmuch\nman\twoman\t5\n": ":2: the score 'much' is not a number",
    "king\tqueen\t1\nking\tman\tnan\nman\twoman\t5\n": ":2: the score 'nan' is not a number",
    "king\tqueen\tgood\nking\tman\tbad\n": "two columns of words and one of numbers are needed",
    "king\t1\t2\n": "two columns of words and one of numbers are needed",
    "no\tbody\t1\nany\tone\t2\n": "0 of 2 pairs have vectors",
    "no\tbody\t1\nking\tqueen\t2\n": "1 of 2 pairs have vectors",
}


@pytest.mark.parametrize("text", BAD_PAIRS)
def test_bad_files_of_pairs(tmp_path: Path, royal: VectorSpace, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(KeelError, match=BAD_PAIRS[text]) as error:
        evaluate_similarity(royal, path)
    assert str(error.value).startswith(str(path))


TABLES = {
    "four.csv": "man,king,woman,queen\nking,man,queen,woman\n",
    "header.tsv": "word1\tword2\tword3\tword4\nman\tking\twoman\tqueen\nking\tman\tqueen\twoman\n",
    "numbered.csv": "id,a1,a2,b1,b2\n1,man,king,woman,queen\n2,king,man,queen,woman\n",
    "unnamed.csv": "0,family,man,king,woman,queen\n1,family,king,man,queen,woman\n",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_analogies(tmp_path: Path, royal: VectorSpace, name: str) -> None:
    found = evaluate_vectors(royal, write(tmp_path, TABLES[name], name))
    assert (found.main, found.count) == ("accuracy", 2)


def test_a_row_number_is_no_score(tmp_path: Path) -> None:
    with pytest.raises(KeelError, match="column 1 only counts the rows"):
        read_pairs(write(tmp_path, "1,king,queen\n2,man,woman\n", "pairs.csv"))


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


def test_analogies_by_section(tmp_path: Path, royal: VectorSpace) -> None:
    found = evaluate_analogies(royal, write(tmp_path, QUESTIONS))
    figures = [(part.name, part.correct, part.total, part.unknown) for part in found.sections]
    assert figures == [
        ("family", 2, 2, 1),
        ("gram3-comparative", 0, 1, 0),
        ("suffix", 1, 1, 0),
    ]
    assert {name: value.value for name, value in found.values.items()} == {
        "accuracy": 0.75, "semantic": 1, "syntactic": 0.5
    }  # fmt: skip
    syntactic: Any = found.values["syntactic"]
    assert syntactic.low < 0.5 < syntactic.high
    assert (found.count, found.unknown) == (4, 1)
    assert str(found).startswith("accuracy 0.750 (")
    assert str(found).endswith(" on 4 questions, 1 more unknown")
    assert found.brief()["sections"][0]["accuracy"] == 1


def test_only_frequent_words_count(tmp_path: Path, royal: VectorSpace) -> None:
    path = write(tmp_path, QUESTIONS)
    found = evaluate_analogies(royal, path, top_words=4)
    assert (found.words, found.count, found.unknown) == (4, 2, 3)
    assert (found.sections[1].total, found.sections[1].accuracy) == (0, 0)
    assert evaluate_analogies(royal, path, top_words=0).words == len(royal.words)
    with pytest.raises(UsageError, match="top_words must be 0"):
        evaluate_analogies(royal, path, top_words=-1)


@pytest.mark.parametrize("by", ["add", "multiply"])
def test_blocks_of_questions_equal_a_plain_search(
    tmp_path: Path,
    random_space: VectorSpace,
    plain_analogy: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
    by: Any,
) -> None:
    monkeypatch.setattr(vector_benchmarks, "MAX_SCORES", 7 * 100)  # 7 questions at a time
    random = np.random.default_rng(5)
    questions: list[list[int]] = []
    for number in range(30):
        a, b, c, other = random.choice(100, 4, replace=False).tolist()
        answer = plain_analogy(random_space, [b, c], [a], by, among=100)[0]
        questions.append(
            [a, b, c, answer if number % 3 else other]
        )  # every third answer is, but for chance, a wrong one
    wanted = sum(plain_analogy(random_space, [b, c], [a], by, among=100)[0] == d for a, b, c, d in questions)
    path = tmp_path / "questions.txt.xz"
    text = "".join(" ".join(random_space.words[row] for row in question) + "\n" for question in questions)
    path.write_bytes(lzma.compress(text.encode()))
    (section,) = evaluate_analogies(random_space, path, top_words=100, by=by).sections
    assert (section.name, section.correct, section.total) == ("questions", wanted, 30)
    assert 20 <= wanted < 30


BAD_QUESTIONS = {
    "": "contains no questions",
    ": family\n": "contains no questions",
    ": family\nman king woman queen\nman king woman\n": ":3: this line has 3 words, a question has 4",
    ": family\nno body any one\n": "no question of 1 has all its words among the first 11",
}


@pytest.mark.parametrize("text", BAD_QUESTIONS)
def test_bad_files_of_questions(tmp_path: Path, royal: VectorSpace, text: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(KeelError, match=BAD_QUESTIONS[text]) as error:
        evaluate_analogies(royal, path)
    assert str(error.value).startswith(str(path))


PUBLISHED = {"wordsim/EN-WS-353-ALL": 353, "wordsim/EN-SIMLEX-999": 999, "wordsim/EN-MEN-TR-3k": 3000,
             "wordsim/EN-RW-STANFORD": 2034, "zh/wordsim/240": 240, "zh/wordsim/297": 297}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_pairs(data_dir: Path, name: str) -> None:
    _, pairs = read_pairs(data_dir / "tasks" / f"{name}.txt")
    assert len(pairs) == PUBLISHED[name]
    assert published_form(data_dir / "tasks" / f"{name}.txt") == "pairs"


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
    found = evaluate_analogies(
        VectorSpace(vocabulary, random.normal(size=(len(vocabulary), 8)).astype(np.float32)), path
    )
    questions = {
        name: sum(
            part.total
            for part in found.sections
            if bool(vector_benchmarks.SYNTACTIC.match(part.name)) == (name == "syntactic")
        )
        for name in ("semantic", "syntactic")
    }
    assert questions == {"semantic": semantic, "syntactic": syntactic}
    assert {name for name, count in questions.items() if count} == found.values.keys() - {"accuracy"}
    assert found.unknown == 0
    assert found.main_value < 0.01
    assert published_form(path) == "questions"
