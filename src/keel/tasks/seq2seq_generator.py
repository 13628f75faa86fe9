"""Autoregressive generation of targets: the decoder of a sequence-to-sequence task as a next-token model."""

from dataclasses import replace

from torch import Tensor

from keel.nn.encoder import Decoder, DecodingState, Recorder
from keel.training.objective import State, Tensors


class SequenceToSequenceGenerator:
    """Next-token model of the targets of some encoded sources."""

    def __init__(self, decoder: Decoder, source: Tensors, opening: int, closing: int, longest: int):
        self.decoder, self.source, self.opening, self.closing = decoder, source, opening, closing
        self.longest = longest

    def begin(self, rows: int) -> DecodingState:
        return DecodingState(source=self.source, own=self.decoder.begin(self.source, rows))

    def next(self, ids: Tensor, state: State | None, record: Recorder | None = None) -> tuple[Tensor, DecodingState]:
        assert isinstance(state, DecodingState)
        vectors, own = self.decoder(ids.to(self.source.device), state.source, state.own, record=record)
        return self.decoder.scores(vectors[:, -1]), replace(state, own=own)
