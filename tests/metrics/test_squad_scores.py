"""Scores of span answers are those of the official scripts.

The expected EM and F1 are outputs of evaluate-v1.1.py and evaluate-v2.0.py (SQuAD) and of cmrc2018_evaluate.py
(version 6, nltk 3.9.1): `squad1_totals`, `squad2_totals` and `cmrc_totals` of benchmarks/answer_scores.py were called
with a dataset of this one question, and the result divided by 100. The benchmark compares thousands of answers.
"""

import numpy as np
import pytest

from keel.metrics.squad_scores import AnswerScorer, answer_language, best_null_threshold, treebank_tokens

ENGLISH, CHINESE = AnswerScorer("english"), AnswerScorer("chinese")


@pytest.mark.parametrize(
    ("predicted", "gold", "exact", "f1"),
    [
        ("The U.S. (an army)!", ["us army"], 1, 1),
        ("in the old harbour town", ["harbour", "the harbour town"], 0, 2 / 3),
        ("blue blue", ["blue sea"], 0, 0.5),
        ("“blue” sea", ["blue sea"], 0, 0.5),  # only ASCII punctuation is removed
        ("BLUE\xa0 sea\n", ["blue sea", "a lake"], 1, 1),
        ("a-b", ["ab"], 1, 1),
        ("don't", ["dont know"], 0, 2 / 3),
        ("Ａ sea", ["sea"], 0, 2 / 3),
        ("", ["sea"], 0, 0),
        ("１９９８", ["1998"], 0, 0),
        ("北京 大学", ["北京大学"], 0, 0),
        ("the", ["the sea"], 0, 0),
    ],
)
def test_english_scores_equal_both_scripts_of_squad(predicted: str, gold: list[str], exact: float, f1: float) -> None:
    assert ENGLISH.exact_match(predicted, gold) == exact
    assert ENGLISH.f1(predicted, gold) == pytest.approx(f1, abs=1e-12)


@pytest.mark.parametrize(
    ("predicted", "gold", "squad1", "squad2"),
    [
        ("", ["the"], (1, 0), (1, 1)),
        ("an", ["the", "sea"], (1, 0), (0, 0)),
        ("", [], None, (1, 1)),
        ("the", [], None, (1, 1)),
        ("sea", [], None, (0, 0)),
    ],
)
def test_answers_without_words_follow_squad_2(
    predicted: str, gold: list[str], squad1: tuple[float, float] | None, squad2: tuple[float, float]
) -> None:
    """SQuAD 1.1's script has another result, or fails without a gold answer (None)."""
    assert (ENGLISH.exact_match(predicted, gold), ENGLISH.f1(predicted, gold)) == squad2 != squad1


@pytest.mark.parametrize(
    ("predicted", "gold", "exact", "f1"),
    [
        ("《北京大学》", ["北京大学"], 1, 1),
        ("在北京，1998年", ["1998年", "北京 1998年"], 0, 8 / 9),
        ("北京的大学", ["北京大学"], 0, 4 / 9),  # the longest common substring, not all four characters
        ("ω-Force公司", ["光荣和ω-force"], 0, 2 / 7),
        ("it's 3,000 U.S. dollars.", ["IT'S 3,000 u.s. dollars"], 0, 10 / 11),
        ('we cannot "go" (now)…', ["we can not go now"], 0, 0.4),
        ("北京……", ["北京"], 0, 0.8),
        ("‘北京‘", ["北京"], 0, 2 / 3),
        ("40°15′—41°", ["40°15′"], 0, 0),
        ("。", ["、"], 1, 0),
        ("", ["北京"], 0, 0),
        ("１９９８年", ["1998年"], 0, 0.5),
        ("don't, 'tis 50%;", ["do n't , 't is 50 %"], 0, 14 / 15),
        ("北京\u3000大学", ["北京大学"], 0, 1),
        ("㐀龦北", ["北", "龦"], 0, 2 / 3),
    ],
)
def test_chinese_scores_equal_the_script_of_cmrc(predicted: str, gold: list[str], exact: float, f1: float) -> None:
    assert CHINESE.exact_match(predicted, gold) == exact
    assert CHINESE.f1(predicted, gold) == pytest.approx(f1, abs=1e-12)


def test_only_an_empty_answer_is_right_for_an_unanswerable_chinese_question() -> None:
    for score in (CHINESE.exact_match, CHINESE.f1):
        assert (score("", []), score("。", []), score("北", [])) == (1, 1, 0)


def test_tokens_of_english_inside_chinese_follow_the_penn_treebank() -> None:
    """Recorded from NLTKWordTokenizer of nltk 3.9.1."""
    text = "\"they'll\" wanna go, can't they? (see e.g. u.s. 1,000.5 & 'tis) 'n more'n it's... dogs' end."
    assert " ".join(treebank_tokens(text)) == (
        "`` they 'll '' wan na go , ca n't they ? ( see e.g. u.s. 1,000.5 & 't is ) 'n more 'n it 's ... dogs ' end ."
    )


def test_language_is_that_of_most_texts() -> None:
    assert answer_language(["1998年，ω-Force公司", "Beijing大学"]) == "chinese"
    assert answer_language(["the word 北京 means Beijing", ""]) == "english"
    assert answer_language([]) == "english"


def mean_score(threshold: float, odds: np.ndarray, f1: np.ndarray, answerable: np.ndarray) -> float:
    return float(np.where(odds > threshold, ~answerable, f1).mean())


@pytest.mark.parametrize("ties", [False, True])
def test_best_null_threshold_is_that_of_a_search_through_all(ties: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = rng.integers(1, 12)
        odds = rng.integers(-3, 4, count).astype(float) if ties else rng.normal(size=count)
        answerable = rng.random(count) < rng.choice([0.0, 0.5, 1.0])
        f1 = np.where(answerable, rng.random(count).round(1), rng.random(count) < 0.1)
        threshold, score = best_null_threshold(odds, f1, answerable)
        assert score == pytest.approx(mean_score(threshold, odds, f1, answerable), abs=1e-12)
        all_scores = [mean_score(each, odds, f1, answerable) for each in [-100.0, *odds]]
        assert score == pytest.approx(max(all_scores), abs=1e-12)


def test_null_threshold_below_all_odds_is_zero_for_probabilities() -> None:
    """As in SQuAD 2.0's script, which starts with 0."""
    nothing_right = (np.zeros(2), np.array([False, False]))
    assert best_null_threshold(np.array([0.2, 0.9]), *nothing_right) == (0.0, 1.0)
    assert best_null_threshold(np.array([-5.0, 0.9]), *nothing_right)[0] < -5.0
