"""Words are drawn as often as they are likely, from those that may be drawn."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from keel.decode.sample import Writer, sample
from keel.errors import UsageError

CHANCES = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])


class Dice:
    """After the id `sure` comes 1; after any other, what CHANCES say."""

    opening = 0
    closing = None

    def __init__(self, sure: int = 3) -> None:
        self.sure = sure
        self.read: list[list[int]] = []

    def start(self, rows: int) -> Any:
        return torch.zeros(rows)

    def next(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.read.append(ids[0].tolist())
        certain = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
        return (certain if ids[0, -1] == self.sure else CHANCES).log()[None] + state[:, None], state + 1


def shares(**settings: Any) -> list[float]:
    drawn = Counter(sample(Dice(sure=-1), [], tokens=1500, **settings))
    return [drawn[number] / 1500 for number in range(5)]


def test_each_is_drawn_as_often_as_it_is_likely() -> None:
    assert isinstance(Dice(), Writer)
    assert shares() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4], abs=0.05)
    assert shares(temperature=0.5) == pytest.approx([0, 1 / 30, 4 / 30, 9 / 30, 16 / 30], abs=0.05)
    assert shares(top_k=2) == pytest.approx([0, 0, 0, 3 / 7, 4 / 7], abs=0.05)
    assert shares(top_p=0.6) == pytest.approx([0, 0, 0, 3 / 7, 4 / 7], abs=0.05)
    assert shares(top_k=3, top_p=0.75) == pytest.approx([0, 0, 0, 3 / 7, 4 / 7], abs=0.05)
    assert shares(banned=[4]) == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 0], abs=0.05)
    assert shares(temperature=0.0) == [0, 0, 0, 0, 1]


def test_the_writer_reads_the_prompt_once_and_then_what_it_wrote() -> None:
    writer = Dice()
    text = list(sample(writer, [2, 3], tokens=6, seed=5))
    assert text[0] == 1
    assert writer.read == [[0, 2, 3], *([number] for number in text[:-1])]
    assert text == list(sample(Dice(), [2, 3], tokens=6, seed=5))
    assert len({tuple(sample(Dice(), [], tokens=6, seed=seed)) for seed in range(20)}) > 10
    assert list(sample(Dice(), [3], tokens=9, stop={1})) == [1]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tokens": 0}, "--tokens must be 1 or more, not 0"),
        ({"temperature": -0.5}, r"--temperature must be 0 \(always the likeliest\) or above, not -0.5"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"top_k": -1}, "--top-k"),
        ({"top_p": 0.0}, "--top-p"),
        ({"top_p": 1.5}, "--top-p"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_drawn(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        sample(Dice(), [], **{"tokens": 5, **settings})
