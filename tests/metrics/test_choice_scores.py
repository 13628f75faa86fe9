"""Ties between choices: the order of the choices does not change a score."""

import numpy as np
import pytest

from keel.data.examples import Labels
from keel.data.label_kinds import ChoiceLabel
from keel.data.multiple_choice_files import read_choices
from keel.data.predictions import ChoicePredictions
from keel.metrics.choice_scores import ChoiceResults, score_choices


def test_a_tie_counts_one_over_the_number_of_tied_choices() -> None:
    scores = np.array([0.2, 0.8, 0.5, 0.5, 0.3, 0.3, 0.3, 0.1, 0.4, 0.4, 0.2])
    results = ChoiceResults.of(scores, [2, 2, 4, 3], np.array([1, 1, 2, 2]), 1e-9)
    assert results.credit.tolist() == pytest.approx([1, 1 / 2, 1 / 3, 0])
    assert results.tied == 3
    assert results.best.tolist() == [1, 0, 0, 0]


def test_float_noise_does_not_break_a_tie() -> None:
    scores = np.array([-40.0, -40.0 + 1e-6])
    assert ChoiceResults.of(scores, [2], np.array([0]), 1e-6 * np.abs(scores)).credit.tolist() == [0.5]


@pytest.mark.parametrize("right", [0, 1])
def test_a_model_that_cannot_decide_scores_as_a_guess_whichever_choice_is_first(right: int) -> None:
    examples = read_choices([((f"text {n}", ["one", "two"]), right) for n in range(6)])
    estimates = np.array([[0.5, 0.5]] * 4 + [[0.9, 0.1]] * 2)
    estimates = (estimates if right == 0 else estimates[:, ::-1]).ravel()
    predictions = ChoicePredictions(Labels(kind=ChoiceLabel()), estimates, examples.choices)
    scores = score_choices(examples, predictions)
    assert scores.main_value == pytest.approx(4 / 6)
    assert (scores.ties, scores.errors) == (4, [])
    assert scores.to_dict()["ties"] == 4
    assert "4 of 6" in str(scores)
