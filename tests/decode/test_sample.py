"""Words are drawn as often as they are likely, from those that may be drawn."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from keel.decode.sample import sample
from keel.decode.writer import Writer
from keel.errors import UsageError
from keel.train.objective import Tensors

CHANCES = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])


@dataclass(frozen=True, kw_only=True)
class Seen(Tensors):
    steps: Tensor  # [rows]


class Dice:
    """After the id `sure` comes 1; after any other, what CHANCES say."""

    opening = 0
    closing = None

    def __init__(self, sure: int = 3) -> None:
        self.sure = sure
        self.read: list[list[list[int]]] = []

    def begin(self, rows: int) -> Seen:
        return Seen(steps=torch.zeros(rows))

    def next(self, ids: Tensor, state: Any) -> tuple[Tensor, Seen]:
        self.read.append(ids.tolist())
        certain = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
        scores = torch.where(ids[:, -1:] == self.sure, certain, CHANCES).log()
        return scores + state.steps[:, None], Seen(steps=state.steps + 1)


def alone(writer: Dice, prompt: list[int], **settings: Any) -> list[int]:
    return [number for (number,) in sample(writer, [prompt], **settings)]


def shares(**settings: Any) -> list[float]:
    drawn = Counter(alone(Dice(sure=-1), [], tokens=1500, **settings))
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
    text = alone(writer, [2, 3], tokens=6, seed=5)
    assert text[0] == 1
    assert writer.read == [[[0, 2, 3]], *([[number]] for number in text[:-1])]
    assert text == alone(Dice(), [2, 3], tokens=6, seed=5)
    assert len({tuple(alone(Dice(), [], tokens=6, seed=seed)) for seed in range(20)}) > 10
    assert alone(Dice(), [3], tokens=9, stop={1}) == [1]


def test_rows_are_drawn_side_by_side_as_each_would_be_alone() -> None:
    prompts = [[2, 3], [1, 4], [1, 4]]
    rows = list(zip(*sample(Dice(), prompts, tokens=30, seed=7), strict=True))
    assert rows == [tuple(alone(Dice(), prompt, tokens=30, seed=7 + row)) for row, prompt in enumerate(prompts)]
    assert rows[1] != rows[2]
    ends = [row.index(1) for row in rows]
    assert len(set(ends)) > 1
    steps = list(sample(Dice(), prompts, tokens=30, seed=7, stop={1}))
    assert len(steps) == max(ends) + 1, "it goes on until the last row has ended"
    likeliest = list(sample(Dice(sure=4), prompts, tokens=3, temperature=0))
    assert likeliest == [[4, 1, 1], [1, 4, 4], [4, 1, 1]]


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
        sample(Dice(), [[]], **{"tokens": 5, **settings})
