"""Tensors of recurrent networks, time step by time step: gates, cell states and hidden states of every layer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.token_batch import TokenBatch
from keel.explain.trace.recurrent_kinds import (
    CELL_INPUT,
    CHARACTER_FEATURES,
    CHARACTERS,
    DIRECTIONS,
    GATES,
    HIDDEN_STATE,
    OUTPUT_VECTORS,
    SCALED_WORDS,
    STATE_BEFORE,
    WORD_VECTORS,
    highway_kind,
)
from keel.explain.trace.tensor_recorder import TensorRecorder
from keel.explain.trace.tensor_trace import TensorKind, TracedTensor, TraceStep
from keel.explain.trace.transformer_kinds import TOKEN_EMBEDDINGS, TOKEN_IDS, TOKENS
from keel.nn.distinct_words import DistinctWords
from keel.nn.encoder import Encoder
from keel.systems.elmo import ElmoEncoder, ElmoLayer
from keel.systems.rnn import RnnEncoder
from keel.systems.seq2seq import Seq2seqEncoder, scaled_embeddings
from keel.systems.ulmfit import AwdLstm, WeightDropLstm


@dataclass(frozen=True, kw_only=True)
class CellRun:
    """One recurrent layer in one direction over a sequence, in the order in which it reads."""

    layer: int
    """From 1."""
    direction: int
    """0 forwards, 1 backwards."""
    module: nn.Module
    inputs: Tensor  # [time, inputs]
    outputs: Tensor  # [time, width]
    hidden: Tensor  # [width] before the first step
    cells: Tensor | None  # [cells] likewise, of an LSTM
    recorded: int
    """Tensors that were recorded before."""


def watch_recurrent(recorder: TensorRecorder, encoder: Encoder) -> list[CellRun] | None:
    """Record the embeddings of a recurrent encoder, and its layers in this list; None for other encoders."""
    runs: list[CellRun] = []
    if isinstance(encoder, ElmoEncoder):
        _watch_elmo(recorder, encoder, runs)
    elif isinstance(encoder, RnnEncoder):
        recorder.watch(encoder.words, before=TOKEN_IDS, after=replace(TOKEN_EMBEDDINGS, stream=True))
        for direction, network in enumerate((encoder.forwards, encoder.backwards)):
            if network is not None:
                layers = network.layers if isinstance(network, AwdLstm) else network.forwards
                _watch_cells(recorder, layers, direction, runs)
    elif isinstance(encoder, Seq2seqEncoder):
        recorder.watch_arguments(encoder, lambda inputs: _record_scaled(recorder, encoder, inputs[0].ids))
        _watch_cells(recorder, encoder.reader.forwards, 0, runs)
        _watch_cells(recorder, encoder.reader.backwards, 1, runs)
    else:
        return None
    recorder.watch(encoder, after=lambda output: recorder.add(OUTPUT_VECTORS, output.top))
    return runs


def _record_scaled(recorder: TensorRecorder, encoder: Seq2seqEncoder, ids: Tensor) -> None:
    recorder.add(TOKEN_IDS, ids)
    recorder.add(SCALED_WORDS, scaled_embeddings(encoder.words.weight, ids))


def _watch_cells(recorder: TensorRecorder, layers: Iterable[nn.Module], direction: int, runs: list[CellRun]) -> None:
    """Record stacked recurrent layers of one direction."""
    for number, module in enumerate(layers, 1):

        def record(inputs: tuple[Any, ...], output: Any, number: int = number, module: nn.Module = module) -> None:
            x, y = inputs[0][0], output[0][0]  # of the only sequence
            hidden, cells = _initial_state(module, inputs[1:], x)
            runs.append(
                CellRun(layer=number, direction=direction, module=module, inputs=x, outputs=y, hidden=hidden,
                        cells=cells, recorded=len(recorder))
            )  # fmt: skip

        recorder.watch_call(module, record)


def _initial_state(module: nn.Module, given: Sequence[Any], x: Tensor) -> tuple[Tensor, Tensor | None]:
    """[width] the hidden state before the first step, and the cell state of an LSTM, from further inputs of a layer."""
    if isinstance(module, WeightDropLstm):
        return given[0][0], given[1][0]
    assert isinstance(module, nn.RNNBase)
    state = given[0] if given else None
    if state is None:
        zeros = x.new_zeros(module.hidden_size)
        return zeros, zeros if isinstance(module, nn.LSTM) else None
    hidden, cells = state if isinstance(state, tuple) else (state, None)
    return hidden[0, 0], None if cells is None else cells[0, 0]


def _watch_elmo(recorder: TensorRecorder, encoder: ElmoEncoder, runs: list[CellRun]) -> None:
    known: dict[str, Tensor] = {}

    def record_characters(inputs: tuple[Any, ...]) -> None:
        batch: TokenBatch = inputs[0]
        assert batch.subword_units is not None
        table = encoder.character_table(batch.subword_units)
        _, index = DistinctWords.of(table, encoder.room)
        known["index"] = index[batch.ids]  # of each token among the distinct words
        recorder.add(CHARACTERS, table[batch.ids])

    def record_words(kind: TensorKind, values: Tensor) -> None:
        recorder.add(kind, values[known["index"]])

    recorder.watch_arguments(encoder, record_characters)
    stages: list[nn.Module] = [*encoder.highways, encoder.project]
    for number, module in enumerate(stages):
        kind = CHARACTER_FEATURES if number == 0 else highway_kind(number)
        recorder.watch(module, before=lambda values, kind=kind: record_words(kind, values))
    recorder.watch(encoder.project, after=lambda values: record_words(WORD_VECTORS, values))
    for number, module in enumerate(encoder.stack, 1):

        def record(inputs: tuple[Any, ...], output: Any, number: int = number, module: nn.Module = module) -> None:
            x, hidden, cells, _ = inputs
            for direction in range(2):
                runs.append(
                    CellRun(
                        layer=number,
                        direction=direction,
                        module=module,
                        inputs=x[direction, :, 0],
                        outputs=output[0][direction, :, 0],
                        hidden=hidden[direction, 0],
                        cells=cells[direction, 0],
                        recorded=len(recorder),
                    )
                )

        recorder.watch_call(module, record)


def gate_values(
    module: nn.Module, direction: int, x: Tensor, hidden: Tensor, cells: Tensor | None
) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    """The gates of one step by the formulas of `RecurrentLayers` and `kernels/lstm.py`, for x [inputs] and a state; the
    new hidden state, and the new cell state of an LSTM."""
    if isinstance(module, ElmoLayer):
        z = x @ module.into[direction] + module.bias[direction] + hidden @ module.recurrent[direction]
        i, f, o, g = z.chunk(4)
        assert cells is not None
        found = _lstm_gates(i, f, g, o)
        cells = found["forget gate"] * cells + found["input gate"] * found["candidate"]
        clip, most = module.clips["cell_clip"], module.clips["clip"]
        cells = cells.clamp(-clip, clip) if clip else cells
        hidden = (found["output gate"] * cells.tanh()) @ module.projection[direction]
        return {**found, "cell state": cells}, hidden.clamp(-most, most) if most else hidden, cells
    from_input, from_state, input_bias, state_bias = _weights(module)
    given, recurrent = F.linear(x, from_input, input_bias), F.linear(hidden, from_state, state_bias)
    if isinstance(module, nn.GRU | nn.GRUCell):
        width = len(hidden)
        r, z = (given[: 2 * width] + recurrent[: 2 * width]).sigmoid().chunk(2)
        new = (given[2 * width :] + r * recurrent[2 * width :]).tanh()
        return {"reset gate": r, "update gate": z, "candidate": new}, (1 - z) * new + z * hidden, None
    if cells is None:
        return {}, (given + recurrent).tanh(), None
    i, f, g, o = (given + recurrent).chunk(4)
    found = _lstm_gates(i, f, g, o)
    cells = found["forget gate"] * cells + found["input gate"] * found["candidate"]
    return {**found, "cell state": cells}, found["output gate"] * cells.tanh(), cells


def _lstm_gates(i: Tensor, f: Tensor, g: Tensor, o: Tensor) -> dict[str, Tensor]:
    return {"input gate": i.sigmoid(), "forget gate": f.sigmoid(), "candidate": g.tanh(), "output gate": o.sigmoid()}


def _weights(module: nn.Module) -> tuple[Tensor, ...]:
    """The weights of a layer or cell of torch, or of a weight-dropped LSTM."""
    if isinstance(module, WeightDropLstm):
        return module.from_input, module.from_state, module.input_bias, module.state_bias
    end = "" if isinstance(module, nn.RNNCellBase) else "_l0"
    return tuple(getattr(module, name + end) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))


class RunningState:
    """The hidden and cell states of all layers and directions while the steps are recorded."""

    def __init__(self, runs: Sequence[CellRun]):
        self.runs = sorted(runs, key=lambda run: (run.layer, run.direction))
        self._states = {(run.layer, run.direction): (run.hidden, run.cells) for run in self.runs}

    def record(self, recorder: TensorRecorder, time: int) -> TracedTensor | None:
        """Record the tensors of all layers at one step, counted in each direction's own order; returns the hidden state
        of the top layer."""
        below: TracedTensor | None = None
        for layer in dict.fromkeys(run.layer for run in self.runs):
            found: dict[TensorKind, list[Tensor]] = {}
            for run in (each for each in self.runs if each.layer == layer):
                hidden, cells = self._states[layer, run.direction]
                gates, _, cells = gate_values(run.module, run.direction, run.inputs[time], hidden, cells)
                parts = {CELL_INPUT: run.inputs[time], STATE_BEFORE: hidden}
                parts |= {GATES[name]: value for name, value in gates.items()} | {HIDDEN_STATE: run.outputs[time]}
                for kind, value in parts.items():
                    found.setdefault(kind, []).append(value)
                self._states[layer, run.direction] = run.outputs[time], cells
            for kind, values in found.items():
                sources = [below] if kind is CELL_INPUT and below is not None else []
                tensor = recorder.add(kind, torch.stack(values)[None], layer, sources)
                below = tensor if kind is HIDDEN_STATE else below
        return below


def split_time_steps(recorder: TensorRecorder, runs: list[CellRun], step: TraceStep) -> list[TraceStep]:
    """A forward pass as steps: the input, every time step, and the output."""
    names = step.labels[TOKENS][0]
    start = min(run.recorded for run in runs)
    directions = ["forward", "backward"][: 1 + max(run.direction for run in runs)]
    steps = [replace(step, title="input", tensors=step.tensors[:start], predictions={})]
    state = RunningState(runs)
    for time, name in enumerate(names):
        state.record(recorder, time)
        read = [name, names[-1 - time]][: len(directions)]
        rows = [f"{direction}: {token}" for direction, token in zip(directions, read, strict=True)]
        title, tensors = f"time step {time + 1}", recorder.collect()
        labels = {DIRECTIONS: [rows]}
        steps.append(TraceStep(title=title, network=step.network, tensors=tensors, labels=labels, read=read))
    return [*steps, replace(step, title="output", tensors=step.tensors[start:], read=())]
