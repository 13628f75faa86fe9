"""WEAT and the direction of pronouns: planted associations are found, random ones are not."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from keel.errors import KeelError
from keel.explain.bias.bias_templates import read_templates
from keel.explain.bias.pronoun_scores import vector_scores
from keel.explain.bias.word_associations import association_test, association_tests
from keel.explain.nearest_neighbors import VectorSpace, unit_vectors

TEMPLATES = read_templates("en")
(X, Y), *_ = TEMPLATES.word_sets.values()
A, B = ([pair[side] for pair in TEMPLATES.gender_pairs] for side in (0, 1))
WORDS = [*X, *Y, *A, *B, *TEMPLATES.occupations]


def space(strength: float, seed: int = 0, width: int = 50) -> VectorSpace:
    """Random vectors; women, X and the first half of the occupations are positive on the first axis."""
    vectors = np.random.default_rng(seed).normal(size=(len(WORDS), width))
    half = len(TEMPLATES.occupations) // 2
    positive = {*X, *A, *TEMPLATES.occupations[:half]}
    vectors[:, 0] += strength * np.array([1 if word in positive else -1 for word in WORDS])
    return VectorSpace(WORDS, vectors.astype(np.float32))


def test_a_planted_association_is_found_and_random_ones_are_not() -> None:
    planted, _ = association_tests(space(4), replace(TEMPLATES, word_sets={"p": (X, Y), "q": (X, Y)}))
    assert planted.effect > 1.5
    assert planted.p <= 1 / 12_870 * 1.001
    assert planted.exact
    p = np.array([association_test(space(0, seed), "r", X, Y, A, B).p for seed in range(40)])
    assert 0.2 < p.mean() < 0.8, "p is about uniform"
    assert (p < 0.05).mean() < 0.2


def test_the_test_equals_its_definition() -> None:
    found = space(0.5, 3)
    x, y = X[:4], Y[:3]
    units = {word: unit_vectors(found.matrix[found.row(word)][None])[0][0].astype(float) for word in WORDS}

    def s(word: str) -> float:
        cosines = [[float(units[word] @ units[other]) for other in side] for side in (A, B)]
        return float(np.mean(cosines[0]) - np.mean(cosines[1]))

    values = np.array([s(word) for word in (*x, *y)])
    result = association_test(found, "t", x, y, A, B)
    assert result.effect == pytest.approx((values[:4].mean() - values[4:].mean()) / values.std(ddof=1), rel=1e-5)
    observed = values[:4].sum() - values[4:].sum()
    larger = 0
    for chosen in combinations(range(7), 4):
        inside = values[list(chosen)].sum()
        larger += inside - (values.sum() - inside) >= observed - 1e-9
    assert result.partitions == 35
    assert result.p == pytest.approx(larger / 35)


def test_large_sets_are_tested_by_random_partitions() -> None:
    found = space(4)
    result = association_test(found, "t", [*X, *A[:4]], [*Y, *B[:4]], A, B)
    assert not result.exact
    assert 0 < result.p < 0.001
    assert association_test(found, "t", [*X, *A[:4]], [*Y, *B[:4]], A, B) == result


def test_unknown_words_are_left_out() -> None:
    found = space(4)
    notes: list[dict] = []
    sets = {"some": ((*X, "zzz"), Y), "none": (("zzz", "yyy"), Y)}
    (result,) = association_tests(found, replace(TEMPLATES, word_sets=sets), notes.append)
    assert result.x == [*X]
    assert "none: left out" in notes[0]["text"]
    same = VectorSpace(WORDS, np.ones((len(WORDS), 3), np.float32))
    with pytest.raises(KeelError, match="same association"):
        association_test(same, "t", X, Y, A, B)


def test_a_planted_direction_orders_the_occupations() -> None:
    found = vector_scores(space(4), TEMPLATES)
    half = len(TEMPLATES.occupations) // 2
    assert {each.occupation for each in found.occupations[:half]} == {*TEMPLATES.occupations[:half]}
    assert found.toward == (half, half)
    values = [each.score.value for each in found.occupations]
    assert values == sorted(values, reverse=True)
    for each in found.occupations:
        assert each.score.low is not None
        assert each.score.high is not None
        assert each.score.low <= each.score.value <= each.score.high
    assert found.occupations[0].positive == 10
    random = vector_scores(space(0), TEMPLATES)
    assert sum(random.toward) <= 14, "the interval over ten pairs is narrow for vectors that have nothing in common"
    assert random.magnitude.value < found.magnitude.value / 2


def test_the_direction_of_one_pair_is_their_difference() -> None:
    found = space(1, 5)
    pair = ("she", "he")
    result = vector_scores(found, replace(TEMPLATES, pronouns=pair, gender_pairs=(pair,)))
    one, other = found.directions(pair).astype(float)
    direction = (one - other) / np.linalg.norm(one - other)
    for each in result.occupations:
        assert each.score.value == pytest.approx(float(found.directions([each.occupation])[0] @ direction), abs=1e-5)
        assert each.score.low is None


def test_vectors_without_the_words() -> None:
    other = VectorSpace(["a", "b"], np.eye(2, dtype=np.float32))
    with pytest.raises(KeelError, match="knows none of the occupations"):
        vector_scores(other, TEMPLATES)
    jobs = VectorSpace([*TEMPLATES.occupations], np.eye(40, dtype=np.float32))
    with pytest.raises(KeelError, match="no pair of words for a direction"):
        vector_scores(jobs, TEMPLATES)
