"""Batched inference: sequences sorted by length, without gradients or dropout, in the precision of training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from keel.training.plan import Precision
from keel.training.step import autocast

Result = TypeVar("Result")


@contextmanager
def eval_mode(module: object) -> Iterator[None]:
    """Evaluation mode (no dropout) of a network within the block."""
    if not isinstance(module, nn.Module):
        yield
        return
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def length_batches(lengths: np.ndarray, batch_size: int, max_tokens: int | None = None) -> Iterator[np.ndarray]:
    """Indices of all sequences in batches of similar length, at most `max_tokens` with padding.

    The longest come first: where memory does not suffice, the first batch fails.
    """
    order, start = np.argsort(-lengths, kind="stable"), 0
    while start < len(order):
        size = batch_size
        if max_tokens is not None:
            size = max(1, min(batch_size, max_tokens // max(1, int(lengths[order[start]]))))
        yield order[start : start + size]
        start += size


def batched_inference(
    module: nn.Module,
    lengths: np.ndarray,
    infer: Callable[[np.ndarray], Result],
    *,
    batch_size: int,
    max_tokens: int | None = None,
    precision: Precision = "fp32",
) -> Iterator[tuple[np.ndarray, Result]]:
    """`infer(index)` for each batch of sequences, with the indices that it got."""
    device = next(module.parameters()).device
    with eval_mode(module):
        for index in length_batches(lengths, batch_size, max_tokens):
            with torch.inference_mode(), autocast(precision, device):
                result = infer(index)
            yield index, result
