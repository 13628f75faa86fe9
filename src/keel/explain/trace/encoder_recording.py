"""What is recorded of an encoder: a Transformer, a recurrent network, a text CNN or word vectors."""

from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from keel.explain.trace.recurrent_recording import CellRun, split_time_steps, watch_recurrent
from keel.explain.trace.tensor_recorder import TensorRecorder
from keel.explain.trace.tensor_trace import TensorKind, TraceStep
from keel.explain.trace.trace_inputs import vocabulary_ids
from keel.explain.trace.transformer_kinds import BATCH, PADDING_MASK, TOKEN_EMBEDDINGS, TOKEN_IDS, TOKENS, VECTORS
from keel.explain.trace.transformer_recording import watch_transformer
from keel.nn.encoder import Encoder
from keel.systems.bert import BertEncoder
from keel.systems.cnn import CnnEncoder

STATIC_VECTORS = TensorKind(
    name="word vectors",
    axes=VECTORS,
    meaning="One vector per word, the same in every sentence.",
    formula="E[id]",
    sources=("token ids",),
    stream=True,
)
FILTER_ACTIVATIONS = TensorKind(
    name="filter activations",
    axes=(BATCH, TOKENS, "filters"),
    meaning="All filters at every position, negative numbers cut off; pooling then takes the maximum of each filter.",
    formula="max(0, W x[t..t+k] + b)",
    part="convolution",
    sources=("stream",),
    stream=True,
)


class PassTensors(NamedTuple):
    """What was recorded of a forward pass."""

    recorder: TensorRecorder
    runs: list[CellRun] | None = None
    """The recurrent layers of a single sequence: their time steps become steps of the trace."""

    def steps(self, step: TraceStep) -> list[TraceStep]:
        """The step, with its tensors; with recurrent layers the time steps between input and output."""
        step = replace(step, tensors=self.recorder.collect())
        alone = len(step.labels[TOKENS]) == 1
        return split_time_steps(self.recorder, self.runs, step) if self.runs and alone else [step]


def watch_encoder(recorder: TensorRecorder, encoder: Encoder) -> PassTensors:
    """Record what an encoder computes."""
    if watch_transformer(recorder, encoder):
        if isinstance(encoder, BertEncoder):
            recorder.watch_arguments(encoder.stack, lambda args: _record_mask(recorder, args[1]))
        return PassTensors(recorder)
    if (runs := watch_recurrent(recorder, encoder)) is not None:
        return PassTensors(recorder, runs)
    if isinstance(encoder, CnnEncoder):
        recorder.watch(encoder.words, before=TOKEN_IDS, after=replace(TOKEN_EMBEDDINGS, stream=True))
        for size, window in zip(encoder.filters.sizes, encoder.filters.windows, strict=True):
            kind = _filter_kind(size)
            recorder.watch(window, after=lambda value, kind=kind: recorder.add(kind, value.transpose(1, 2)))
        recorder.watch(encoder, after=lambda output: recorder.add(FILTER_ACTIVATIONS, output.top))
    else:
        recorder.watch_arguments(encoder, lambda args: recorder.add(TOKEN_IDS, vocabulary_ids(args[0])))
        recorder.watch(encoder, after=lambda output: recorder.add(STATIC_VECTORS, output.top))
    return PassTensors(recorder)


def _record_mask(recorder: TensorRecorder, mask: Tensor | None) -> None:
    if mask is not None:
        recorder.add(PADDING_MASK, mask.float())


def _filter_kind(size: int) -> TensorKind:
    return TensorKind(
        name=f"filters over {size} tokens",
        axes=(BATCH, TOKENS, "filters"),
        meaning=f"Every filter at every window of {size} neighbouring vectors: one number each.",
        formula=f"W x[t..t+{size - 1}] + b",
        part="convolution",
        sources=("token embeddings",),
    )
