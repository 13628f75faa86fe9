"""Steps of writing are laid out once for one row and once for many, whoever writes beside them."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from weakref import ref

import pytest
import torch
from torch import Tensor

from keel.data.tokenizer import Tokenizer
from keel.nn import incremental_decoding
from keel.nn.incremental_decoding import DecodingGraph, DecodingStep, decoding_step
from keel.nn.transformer_blocks import DecoderBlock
from keel.systems.gpt import Gpt, GptPretraining

WORDS = Tokenizer.from_words(["the", "sea", "is", "blue"])
LAYERS = 2


@pytest.fixture
def objective() -> GptPretraining:
    torch.manual_seed(0)
    system = Gpt(layers=LAYERS, width=32, head_dim=16, max_positions=128, sequence_length=128)
    return system.build_objective(system.build_encoder(len(WORDS)), WORDS).eval()


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> "Counter[bool]":
    """How many matrices were laid out, for one row and for many."""
    count: Counter[bool] = Counter()
    plain = incremental_decoding.pack_linear

    def count_and_pack(weight: Tensor, bias: Tensor | None, rows: int) -> Callable[[Tensor], Tensor]:
        count[rows > 1] += 1
        return plain(weight, bias, rows)

    monkeypatch.setattr(incremental_decoding, "pack_linear", count_and_pack)
    return count


@torch.no_grad()
def greedy_ids(objective: GptPretraining, rows: int, steps: int, together: Barrier | None = None) -> list[list[int]]:
    """The most probable ids after a prompt, each thread's step beside the other's."""
    ids, state, found = torch.arange(3 * rows).view(rows, 3) % len(WORDS), objective.new_state(rows), []
    for _ in range(steps):
        if together:
            together.wait(timeout=60)
        scores, state = objective.step(ids, state)
        ids = scores.argmax(1, keepdim=True)
        found.append(ids[:, 0].tolist())
    return found


def test_one_row_and_many_side_by_side_are_laid_out_once_each(
    objective: GptPretraining, laid_out: "Counter[bool]"
) -> None:
    sizes = 1, 2, 1, 3
    with ThreadPoolExecutor(len(sizes)) as pool:
        found = [*pool.map(partial(greedy_ids, objective, steps=12, together=Barrier(len(sizes))), sizes)]
    once = 4 * LAYERS + 1
    assert laid_out == {False: once, True: once}
    assert found == [greedy_ids(objective, rows, 12) for rows in sizes]
    assert laid_out == {False: once, True: once}, "and found again by who writes later"


def test_what_was_laid_out_goes_with_the_weights_it_was_of(objective: GptPretraining) -> None:
    encoder = objective.encoder
    blocks = [block for block in encoder.stack if isinstance(block, DecoderBlock)]

    def step(rows: int) -> ref[DecodingStep]:
        return ref(decoding_step(encoder, blocks, encoder.norm, encoder.words.weight, rows))

    one, many = step(1), step(3)
    assert one() is not many()
    assert step(1)() is one() is not None
    assert step(2)() is many() is not None
    with torch.no_grad():
        encoder.words.weight.mul_(2)
    assert step(1)() is not None
    assert (one(), many()) == (None, None)


@pytest.mark.gpu
def test_two_threads_capture_their_steps(objective: GptPretraining) -> None:
    objective = objective.to("cuda")
    greedy_ids(objective, 2, 3)  # what torch sets up once is no part of it
    graphs: list[DecodingGraph] = []
    plain = DecodingGraph._capture

    def capture(self: DecodingGraph, ids: Tensor, slot: int) -> None:
        graphs.append(self)
        plain(self, ids, slot)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecodingGraph, "_capture", capture)
        for _ in range(10):
            with ThreadPoolExecutor(2) as pool:
                found = [*pool.map(partial(greedy_ids, objective, steps=100, together=Barrier(2)), (1, 2))]
            assert found == [greedy_ids(objective, rows, 100) for rows in (1, 2)]
    assert len(graphs) >= 80  # room was made once while each of 40 texts was written
    assert all(graph.graph is not None for graph in graphs)
