"""Golden runs: the recorded systems and tasks still give the numbers of fingerprints.json.

A refactoring must leave them equal. Where numbers are meant to change, run tests/golden/record.py. Each
run also shows that an interrupted one ends as an uninterrupted one does, and that a folder gives back what was saved.
"""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.golden.cases import ALL_CASES, Case
from tests.golden.record import plain, recorded
from tests.golden.runs import run_case

RELATIVE, ABSOLUTE = 2e-5, 2e-6
"""Tolerances of floats, since processors sum in another order; strings and integers are equal. Measured: with AVX2, and
with no vector instructions at all, all figures are within half of this of those with AVX-512."""


@pytest.mark.parametrize("name", ALL_CASES)
def test_every_recorded_run_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    case: Case = ALL_CASES[name]
    found = differences(recorded()[name], plain(run_case(case, tmp_path)))
    assert not found, f"{name} gives other numbers than tests/golden/fingerprints.json:\n" + "\n".join(found[:12])


def test_nothing_is_recorded_that_is_not_run() -> None:
    assert recorded().keys() == ALL_CASES.keys()


def test_a_difference_is_found() -> None:
    weights = [[[2, 2], 0.5, 0.5, 0.1, [0.1, 0.2, 0.3]], [[2, 2], 0.25, 0.5, 0.1, [0.1, 0.2, 0.3]]]
    before = {"loss": [1.0, 2.0], "weights": weights, "predictions": [["sea", 0.5]]}
    assert not differences(before, {**before, "loss": [1.0, 2.00001], "weights": weights[::-1]})
    for changed in ({"loss": [1.0, 2.001]}, {"weights": weights[:1]}, {"predictions": [["law", 0.5]]}, {"loss": [1.0]}):
        assert differences(before, {**before, **changed})
    moved = [weights[0], [[2, 2], 0.25, 0.5, 0.1, [0.1, 0.2, 0.31]]]
    assert differences(before, {**before, "weights": moved})


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Where two records differ, in words."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if expected.keys() != found.keys():
            return [f"{where}: {sorted(expected)} were recorded, {sorted(found)} found"]
        inner = [
            (_tensor_differences if name == "weights" else differences)(value, found[name], f"{where}/{name}")
            for name, value in expected.items()
        ]
        return [each for listed in inner for each in listed]
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return [f"{where}: {len(expected)} values were recorded, {len(found)} found"]
        pairs = enumerate(zip(expected, found, strict=True))
        return [each for number, (one, two) in pairs for each in differences(one, two, f"{where}/{number}")]
    if isinstance(expected, float) and isinstance(found, int | float):
        equal = math.isclose(expected, found, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    else:
        equal = expected == found
    return [] if equal else [f"{where}: {expected!r} was recorded, {found!r} found"]


def _tensor_differences(expected: list[Any], found: list[Any], where: str) -> list[str]:
    """Tensors have no names here: each that was recorded must be found once."""
    left, missing = list(found), []
    for tensor in expected:
        match = next((each for each in left if _same_tensor(tensor, each)), None)
        if match is None:
            missing.append(tensor)
        else:
            left.remove(match)
    return [f"{where}: {tensor} was recorded and is not found" for tensor in missing] + [
        f"{where}: {tensor} is found and was not recorded" for tensor in left
    ]


def _same_tensor(one: list[Any], two: list[Any]) -> bool:
    """Figures of tensors are compared on the scale of all its numbers: a mean may be near zero."""
    tolerance = RELATIVE * max(one[2], two[2]) + ABSOLUTE
    figures, others = ([*each[1:4], *each[4]] for each in (one, two))
    return one[0] == two[0] and all(abs(a - b) <= tolerance for a, b in zip(figures, others, strict=True))
