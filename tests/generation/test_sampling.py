"""Sampling: frequencies, independence of the batch, penalties."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.generation.beam_search import beam_search
from keel.generation.likelihood import ScoredText, continuation_likelihoods
from keel.generation.next_token import top_candidates
from keel.generation.sampling import Sampling, apply_repetition_penalty, sample, sample_ids
from keel.systems.capabilities import CausalLM
from keel.systems.gpt import Gpt
from keel.training.objective import Tensors

PROBABILITIES = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])


@dataclass(frozen=True, kw_only=True)
class Seen(Tensors):
    steps: Tensor  # [rows]


class Dice:
    """After the id `sure` comes 1; after any other, PROBABILITIES hold."""

    bos_id = 0
    eos_id = max_context = None

    def __init__(self, sure: int = 3) -> None:
        self.sure = sure
        self.read: list[list[list[int]]] = []

    def new_state(self, batch_size: int) -> Seen:
        return Seen(steps=torch.zeros(batch_size))

    def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Seen]:
        self.read.append(ids.tolist())
        certain = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
        scores = torch.where(ids[:, -1:] == self.sure, certain, PROBABILITIES).log()
        return scores + state.steps[:, None], Seen(steps=state.steps + 1)


def alone(model: Dice, prompt: list[int], *, tokens: int, **settings: Any) -> list[int]:
    given = {name: settings.pop(name) for name in ("stop_ids", "banned", "is_finished") if name in settings}
    return [number for (number,) in sample(model, [prompt], Sampling(**settings), max_new_tokens=tokens, **given)]


def shares(**settings: Any) -> list[float]:
    sampled = Counter(alone(Dice(sure=-1), [], tokens=1500, **settings))
    return [sampled[number] / 1500 for number in range(5)]


def test_frequencies_equal_probabilities() -> None:
    assert isinstance(Dice(), CausalLM)
    assert shares() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4], abs=0.05)
    assert shares(temperature=0.5) == pytest.approx([0, 1 / 30, 4 / 30, 9 / 30, 16 / 30], abs=0.05)
    assert shares(top_k=2) == pytest.approx([0, 0, 0, 3 / 7, 4 / 7], abs=0.05)
    assert shares(top_p=0.6) == pytest.approx([0, 0, 0, 3 / 7, 4 / 7], abs=0.05)
    assert shares(top_k=3, top_p=0.75) == pytest.approx([0, 0, 0, 3 / 7, 4 / 7], abs=0.05)
    assert shares(banned=[4]) == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 0], abs=0.05)
    assert shares(temperature=0.0) == [0, 0, 0, 0, 1]


def test_prompt_is_read_once() -> None:
    model = Dice()
    text = alone(model, [2, 3], tokens=6, seed=5)
    assert text[0] == 1
    assert model.read == [[[0, 2, 3]], *([[number]] for number in text[:-1])]
    assert text == alone(Dice(), [2, 3], tokens=6, seed=5)
    assert len({tuple(alone(Dice(), [], tokens=6, seed=seed)) for seed in range(20)}) > 10
    assert alone(Dice(), [3], tokens=9, stop_ids={1}) == [1]


def test_sequences_are_independent_of_the_batch() -> None:
    prompts = [[2, 3], [1, 4], [1, 4]]
    seven = Sampling(seed=7)
    rows = list(zip(*sample(Dice(), prompts, seven, max_new_tokens=30), strict=True))
    assert rows == [tuple(alone(Dice(), prompt, tokens=30, seed=7 + row)) for row, prompt in enumerate(prompts)]
    assert rows[1] != rows[2]
    ends = [row.index(1) for row in rows]
    assert len(set(ends)) > 1
    model = Dice()
    steps = list(sample(model, prompts, seven, max_new_tokens=30, stop_ids={1}))
    assert len(steps) == max(ends) + 1, "until the last sequence has ended"
    assert [row[: end + 1] for row, end in zip(rows, ends, strict=True)] == [
        tuple(step[row] for step in steps[: end + 1]) for row, end in enumerate(ends)
    ]
    left = [sum(end >= step for end in ends) for step in range(len(steps))]
    assert [len(ids) for ids in model.read] == left, "finished sequences leave the batch"
    best = list(sample(Dice(sure=4), prompts, Sampling(temperature=0), max_new_tokens=3))
    assert best == [[4, 1, 1], [1, 4, 4], [4, 1, 1]]


def test_prompts_of_different_lengths_are_independent() -> None:
    prompts = [[2, 3], [], [1, 4], [2], []]
    model = Dice()
    rows = list(zip(*sample(model, prompts, Sampling(seed=3), max_new_tokens=12, stop_ids={1}), strict=True))
    assert len(model.read[0]) == 2, "one batch per length"
    for number, prompt in enumerate(prompts):
        text = alone(Dice(), prompt, tokens=12, seed=3 + number, stop_ids={1})
        assert rows[number] == (*text, *text[-1:] * (len(rows[number]) - len(text)))


def test_custom_stopping_criterion() -> None:
    seen: list[tuple[int, int]] = []

    def ended(row: int, number: int) -> bool:
        seen.append((row, number))
        return sum(other == row for other, _ in seen) == row + 1

    steps = list(sample(Dice(), [[], [], []], max_new_tokens=9, is_finished=ended))
    assert len(steps) == 3
    assert [row for row, _ in seen] == [0, 1, 2, 1, 2, 2]


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.5])
def test_filters_equal_transformers(penalty: float) -> None:
    from transformers import (
        LogitsProcessorList,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    torch.manual_seed(0)
    scores, read = torch.randn(3, 5000) * 3, torch.randint(5000, (3, 400))
    seen = torch.zeros(3, 5000, dtype=torch.bool).scatter_(1, read, True)
    ours = apply_repetition_penalty(scores, seen, penalty)
    processor: Any = RepetitionPenaltyLogitsProcessor(penalty)
    theirs = processor(read, scores.clone())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    probabilities = torch.linspace(0, 0.999, 400, dtype=torch.float64)
    for top_k, top_p in ((0, 0.7), (50, 0.7), (7, 1.0), (0, 0.999)):
        sampling = Sampling(temperature=0.8, top_k=top_k, top_p=top_p)
        sampled = torch.stack([sample_ids(ours, sampling, chance.expand(3)) for chance in probabilities])
        warpers: Any = LogitsProcessorList([TemperatureLogitsWarper(0.8), TopPLogitsWarper(top_p)])
        if top_k:
            warpers.insert(1, TopKLogitsWarper(top_k))
        shares = warpers(read, theirs.clone()).softmax(1)
        for row in range(3):
            expected = set(shares[row].nonzero()[:, 0].tolist())
            found = set(sampled[:, row].tolist())
            assert found <= expected
            assert {number for number in expected if shares[row, number] > 0.005} <= found


def test_large_vocabulary_is_sampled_by_block() -> None:
    torch.manual_seed(3)
    scores = torch.randn(2, 9001) * 3
    scores[:, 100:300] = -torch.inf
    probabilities = torch.rand(3000, dtype=torch.float64)
    sampled = torch.stack(
        [sample_ids(scores, Sampling(), chance.expand(2)) for chance in probabilities], 1
    )  # [2, 3000]
    sums = scores.double().softmax(1).cumsum(1)
    for row in range(2):
        expected = torch.searchsorted(sums[row], probabilities, right=True)
        assert (sampled[row] == expected).float().mean() > 0.99, "but where rounding decides"
        assert ((sampled[row] - expected).abs() <= 2).all()
        assert not ((sampled[row] >= 100) & (sampled[row] < 300)).any()


def test_repetition_penalty_applies_to_generated_tokens() -> None:
    class Still(Dice):
        def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Seen]:
            return PROBABILITIES.log().repeat(len(ids), 1), state

    greedy: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 50.0}
    assert alone(Still(), [], tokens=5, **greedy) == [4, 3, 2, 1, 4]
    assert alone(Still(), [4, 2], tokens=2, **greedy) == [3, 1], "the prompt counts"
    steps = list(sample(Still(), [[], [4], [3]], Sampling(**greedy), max_new_tokens=3, stop_ids={2}))
    assert [*zip(*steps, strict=True)] == [(4, 3, 2), (3, 2, 2), (4, 2, 2)]


def test_top_candidates_by_block() -> None:
    torch.manual_seed(1)
    for vocabulary in (5, 64, 1000, 4099):
        scores = torch.randn(6, vocabulary).round(decimals=2)
        for count in (1, 5, 12):
            values, positions = top_candidates(scores, min(count, vocabulary))
            assert torch.equal(values, scores.topk(min(count, vocabulary), dim=1).values)
            assert torch.equal(values, scores.gather(1, positions))
            assert all(len(set(row)) == len(row) for row in positions.tolist())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tokens": 0}, "^tokens must be 1 or more, not 0"),
        ({"temperature": -0.5}, "temperature must be 0 or more .*, not -0.5"),
        ({"temperature": float("nan")}, "temperature must be a number, not nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0 .*, not 0.0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty must be above 0 .*, not -1.0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty must be a number, not nan"),
        ({"seed": 2**64}, "seed must be 0 or more and below .*, not 18446744073709551616"),
        ({"seed": -1}, "seed must be 0 or more .*, not -1"),
        ({"top_k": -1}, "top_k must be 0 .*, not -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and 1 or less, not 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and 1 or less, not 1.5"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    tokens = settings.pop("tokens", 5)
    with pytest.raises(UsageError, match=sentence):
        sample(Dice(), [[]], Sampling(**settings), max_new_tokens=tokens)


def test_generation_has_no_dropout_and_leaves_the_mode() -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_words(["a", "b", "c", "d"])
    system = Gpt(layers=1, width=16, head_dim=8, max_positions=8, sequence_length=8, dropout=0.5)
    model: Any = system.build_objective(system.build_encoder(len(tokenizer)), tokenizer)

    def generate() -> list[Any]:
        (text,) = continuation_likelihoods(model, [ScoredText([4, 5], [6, 4])])
        ids = [*sample(model, [[4, 5]], Sampling(seed=1), max_new_tokens=5)]
        ((best,),) = beam_search(model, [[4, 5]], max_new_tokens=5)
        return [ids, best.ids, best.log_prob, text.log_prob]

    model.eval()
    expected = generate()
    assert not model.training
    model.train()
    assert generate() == expected
    assert model.training
