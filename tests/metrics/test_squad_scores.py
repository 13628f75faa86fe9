"""Answers are compared by their words, as SQuAD does."""

import pytest

from keel.metrics.squad_scores import exact_match, normal_words, overlap_f1


def test_articles_capitals_and_punctuation_do_not_count() -> None:
    assert normal_words("The U.S. (an army), 'a' theatre!") == ["us", "army", "theatre"]
    assert normal_words("在 北京，1998年") == ["在", "北", "京", "1998", "年"]


def test_the_nearest_of_the_right_answers_counts() -> None:
    assert overlap_f1("in the old harbour town", ["harbour", "the harbour town"]) == pytest.approx(2 * 2 / (4 + 2))
    assert overlap_f1("blue blue", ["blue sea"]) == 0.5
    assert (overlap_f1("", [""]), overlap_f1("the", [""]), overlap_f1("", ["sea"]), overlap_f1("sea", [])) == (
        1,
        1,
        0,
        0,
    )
    assert exact_match("The Sea.", ["a lake", "sea"]) == 1
    assert exact_match("the seas", ["sea"]) == 0
