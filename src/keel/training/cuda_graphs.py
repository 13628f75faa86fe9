"""Whole steps as CUDA graphs: one launch instead of a thousand, for small networks and short rows."""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from keel.events import OnEvent, note
from keel.training.device_errors import OutOfMemoryError, error_tail
from keel.training.objective import Tensors

WARM = 2
"""Times a shape is seen before it is captured: rare ones do not pay, and the first steps set things up."""
MOST = 64
"""Graphs that are kept."""

Found = tuple[dict[str, Tensor], Tensor | None]
Update = Callable[..., Found]
"""(batches, counts, seed) to losses and norm: a whole update; without a seed the random numbers go on."""


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    found: Found


class StepGraphs:
    """Updates by shape of the batch: met for the first times they run as they are, then as a graph."""

    def __init__(self, on_event: OnEvent) -> None:
        self.on_event = on_event
        self.off = False
        """Whether a capture has failed: no more are tried then."""
        self.seen: Counter[Any] = Counter()
        self.captured: dict[Any, _Captured] = {}
        self.pool: Any = None

    def clear(self) -> None:
        """Forget all graphs, and give their memory back."""
        self.seen.clear()
        self.captured.clear()
        self.pool = None

    def run(self, batches: Sequence[Tensors], counts: Mapping[str, Tensor], seed: int, update: Update) -> Found:
        """The update of these batches with dropout by `seed`."""
        tensors = [tensor for batch in batches for tensor in batch.tensors()] + [*counts.values()]
        shape = tuple(batch.signature() for batch in batches), tuple(counts)
        if shape not in self.captured:
            self.seen[shape] += 1
            if self.seen[shape] <= WARM or len(self.captured) >= MOST or self.off:
                return update(batches, counts, seed)
            stream = torch.cuda.current_stream()
            try:
                self.captured[shape] = self._capture(batches, counts, update)
            except (RuntimeError, OutOfMemoryError) as error:
                torch.cuda.set_stream(stream)  # a capture that breaks off may not give it back
                self.clear()
                self.off = True
                note(
                    self.on_event,
                    f"steps cannot be captured as graphs here, which costs speed alone ({error_tail(error)})",
                )
                return update(batches, counts, seed)
        captured = self.captured[shape]
        for still, given in zip(captured.inputs, tensors, strict=True):
            still.copy_(given)
        torch.manual_seed(seed)
        captured.graph.replay()
        losses, norm = captured.found
        # The next replay writes over what this one found.
        return {name: value.clone() for name, value in losses.items()}, None if norm is None else norm.clone()

    def _capture(self, batches: Sequence[Tensors], counts: Mapping[str, Tensor], update: Update) -> _Captured:
        still = [batch.clone() for batch in batches]
        kept = {name: value.clone() for name, value in counts.items()}
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as the one that writes checkpoints, may ask the driver for memory meanwhile.
        with warnings.catch_warnings(), torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")  # of one that breaks off at once
            found = update(still, kept, None)
        self.pool = self.pool or graph.pool()
        inputs = [tensor for batch in still for tensor in batch.tensors()]
        return _Captured(graph, [*inputs, *kept.values()], found)
