"""Whole training steps as CUDA graphs, one launch instead of a thousand; and errors of device and compiler."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from keel.events import OnEvent, note
from keel.training.objective import Tensors

WARMUP_STEPS = 2
"""Eager steps of a shape before it is captured: capturing rare shapes does not pay."""
MAX_GRAPHS = 64

LossesAndNorm = tuple[dict[str, Tensor], Tensor]
Captured = tuple[torch.cuda.CUDAGraph, list[Tensor], LossesAndNorm]
"""A graph, its inputs and its outputs."""
Update = Callable[..., LossesAndNorm]
"""(batches, counts, seed) to losses and gradient norm: a whole update; without a seed the RNG state is unchanged."""


class OutOfMemoryError(Exception):
    """The micro-batch does not fit into GPU memory."""


def is_compiler_error(error: Exception) -> bool:
    """Whether torch.compile failed."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def error_tail(error: Exception) -> str:
    """The end of a library's error message, where the reason is."""
    return " ".join(str(error).split())[-300:]


class StepGraphs:
    """CUDA graphs of the update, by the shapes of the batch: eager at first, then captured and replayed."""

    def __init__(self, on_event: OnEvent) -> None:
        self.on_event = on_event
        self.off = False
        """Whether a capture has failed: no more are tried."""
        self.seen: Counter[Any] = Counter()
        self.captured: dict[Any, Captured] = {}
        self.pool: Any = None

    def clear(self) -> None:
        """Drop all graphs and free their memory."""
        self.seen.clear()
        self.captured.clear()
        self.pool = None

    def run(self, batches: Sequence[Tensors], counts: Mapping[str, Tensor], seed: int, update: Update) -> LossesAndNorm:
        """Run the update of these micro-batches, with dropout seeded by `seed`."""
        shape = tuple(batch.signature() for batch in batches), tuple(counts)
        if shape not in self.captured:
            self.seen[shape] += 1
            if self.seen[shape] <= WARMUP_STEPS or len(self.captured) >= MAX_GRAPHS or self.off:
                return update(batches, counts, seed)
            stream = torch.cuda.current_stream()
            try:
                self.captured[shape] = self._capture(batches, counts, update)
            except (RuntimeError, OutOfMemoryError) as error:
                torch.cuda.set_stream(stream)  # a failed capture may not restore it
                _leave_capture_mode(torch.cuda.default_generators[stream.device_index])
                self.clear()
                self.off = True
                what = "steps cannot be captured as CUDA graphs here and run eagerly, slower"
                note(self.on_event, f"{what} ({error_tail(error)})")
                return update(batches, counts, seed)
        graph, inputs, (losses, norm) = self.captured[shape]
        for static, given in zip(inputs, _inputs(batches, counts), strict=True):
            static.copy_(given)
        torch.manual_seed(seed)
        graph.replay()
        # The next replay overwrites these tensors.
        return {name: value.clone() for name, value in losses.items()}, norm.clone()

    def _capture(self, batches: Sequence[Tensors], counts: Mapping[str, Tensor], update: Update) -> Captured:
        static = [batch.clone() for batch in batches]
        static_counts = {name: value.clone() for name, value in counts.items()}
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as the checkpoint writer, may allocate memory meanwhile.
        with warnings.catch_warnings(), torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")  # of a capture that fails at once
            outputs = update(static, static_counts, None)
        self.pool = self.pool or graph.pool()
        return graph, _inputs(static, static_counts), outputs


def _inputs(batches: Sequence[Tensors], counts: Mapping[str, Tensor]) -> list[Tensor]:
    return [*(tensor for batch in batches for tensor in batch.tensors()), *counts.values()]


def _leave_capture_mode(generator: torch.Generator) -> None:
    """Give the generator a copy of its state: a failed capture leaves the old one unusable outside of captures."""
    generator.graphsafe_set_state(generator.clone_state())
