"""Autoregressive generation of targets: the decoder of a sequence-to-sequence task as a next-token model."""

from dataclasses import replace

from torch import Tensor

from keel.nn.encoder import Decoder, DecodingState, Recorder
from keel.training.objective import State, Tensors


class SequenceToSequenceGenerator:
    """Next-token model of the targets of some encoded sources."""

    def __init__(self, decoder: Decoder, source: Tensors, bos_id: int, eos_id: int, max_context: int):
        self.decoder, self.source, self.bos_id, self.eos_id = decoder, source, bos_id, eos_id
        self.max_context = max_context

    def new_state(self, batch_size: int) -> DecodingState:
        return DecodingState(source=self.source, own=self.decoder.new_state(self.source, batch_size))

    def step(self, ids: Tensor, state: State | None, record: Recorder | None = None) -> tuple[Tensor, DecodingState]:
        assert isinstance(state, DecodingState)
        vectors, own = self.decoder(ids.to(self.source.device), state.source, state.own, record=record)
        return self.decoder.logits(vectors[:, -1]), replace(state, own=own)
