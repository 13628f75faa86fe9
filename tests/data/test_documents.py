"""Text as a ring: every reader continues where it was, and together they read all of it."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from keel.data.documents import Documents
from keel.training.counter_rng import CounterRng

END = 99


@pytest.fixture
def documents() -> Documents:
    """Two documents: sentences of 2, 3 and 1 tokens, and of 4."""
    starts = torch.tensor([0, 2, 5, 6, 10])
    return Documents._over(torch.arange(1, 11, dtype=torch.int16), starts, torch.tensor([[0, 3], [3, 4]]))


WITH_END_TOKENS = [1, 2, END, 3, 4, 5, END, 6, END, END, 7, 8, 9, 10, END, END]


def read(documents: Documents, readers: int, step: int, length: int, backwards: bool = False) -> torch.Tensor:
    rng = CounterRng(seed=0, step=step, first_example=step * readers, batch_size=readers)
    return documents.read_streams(rng, torch.arange(readers), length, end=END, backwards=backwards)


def test_sentences_and_documents_end_with_end_tokens(documents: Documents) -> None:
    assert documents.stream_size == len(WITH_END_TOKENS)
    assert read(documents, 1, 0, 15)[0].tolist() == WITH_END_TOKENS
    assert read(documents, 1, 0, 15, backwards=True)[0].tolist() == WITH_END_TOKENS[::-1]


@pytest.mark.parametrize("backwards", [False, True])
def test_readers_go_on_where_they_were_and_read_all(documents: Documents, backwards: bool) -> None:
    ring = WITH_END_TOKENS[::-1] if backwards else WITH_END_TOKENS
    steps = [read(documents, 4, step, 2, backwards) for step in range(4)]
    for before, after in pairwise(steps):
        assert (before[:, -1] == after[:, 0]).all()
    streamed = np.concatenate([step[:, :-1] for step in steps[:2]], 1).ravel().tolist()
    assert streamed == ring
    again = np.concatenate([step[:, :-1] for step in steps[2:]], 1).ravel().tolist()
    assert again == ring[4:] + ring[:4]


def test_held_out_documents_have_a_ring_of_their_own(documents: Documents) -> None:
    part = Documents._over(documents.ids, documents.starts, torch.tensor([[3, 4]]))
    assert read(part, 1, 0, 5)[0].tolist() == [7, 8, 9, 10, END, END]
