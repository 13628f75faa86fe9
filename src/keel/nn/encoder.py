"""What reads and what writes: encoders give vectors for ids, decoders ids for vectors."""

from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from keel.data.token_batch import SubwordUnits, TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.training.objective import State, Tensors


@dataclass(frozen=True, kw_only=True)
class EncoderOutput:
    """What an encoder gives for a batch."""

    top: Tensor  # [batch, time, width]
    layers: list[Tensor] = field(default_factory=list)
    """With `all_layers`: the embedded input, then every block's output, [batch, time, width]; the last is `top`."""
    state: State | None = None


class Recorder(Protocol):
    """Is shown what a network computes on the way, such as attention; pass one to look inside."""

    def __call__(self, name: str, layer: int, value: Tensor) -> None: ...


class Encoder(nn.Module):
    """Ids to vectors. A static word vector is an encoder with no blocks."""

    vocab_size: int
    """How many ids it knows."""
    width: int
    """Of the vectors it gives."""

    @property
    def accepts_packed(self) -> bool:
        """Whether it takes packed rows, as it is and where it is."""
        return False

    @property
    def sparse(self) -> bool:
        """Whether its vectors are as wide as the vocabulary and next to empty: then only `gist` is worth computing."""
        return False

    def word_embeddings(self) -> Tensor | None:
        """[vocabulary, width]: the vector of each word alone, where words have one."""
        words = getattr(self, "words", None)
        return words.weight if isinstance(words, nn.Embedding) else None

    def extra_files(self, tokenizer: Tokenizer) -> dict[str, str]:
        """What it has to tell people, as further files of its folder, by name."""
        return {}

    def embed(self, batch: TokenBatch) -> Tensor:
        """[batch, time, width]: words, positions and whatever else a row's ids mean before any context."""
        raise NotImplementedError

    def contextualize(
        self,
        vectors: Tensor,
        batch: TokenBatch,
        *,
        state: State | None = None,
        all_layers: bool = False,
        record: Recorder | None = None,
    ) -> EncoderOutput:
        """The vectors after every block has seen their neighbours: the same where there is no block."""
        return EncoderOutput(top=vectors, layers=[vectors] if all_layers else [])

    def used_embeddings(self, units: SubwordUnits) -> tuple[dict[str, Tensor], SubwordUnits]:
        """Of each table of vectors the rows that this spelling uses, and the spelling by their places among these."""
        return {}, units

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        """[batch, width]: of each row, what its summary is made from, the mean unless a system knows better; nothing
        here is learned, so it can be kept."""
        inside = torch.arange(batch.ids.shape[1], device=batch.ids.device) < batch.lengths[:, None]
        return (output.top * inside[..., None]).sum(1) / batch.lengths[:, None].clamp(min=1)

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        """[batch, width]: what `pick` takes of the rows' output; a system may know how to compute no more than that."""
        return self.pool_features(self(batch), batch)

    def pool_projection(self, features: Tensor) -> Tensor:
        """[batch, width]: one vector for each row, made from what was picked."""
        return features

    def pooler_parameters(self) -> list[nn.Parameter]:
        """The weights that `summarize` uses."""
        return []

    def pool(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        """[batch, width]: one vector for each row, the way this system makes it."""
        return self.pool_projection(self.pool_features(output, batch))

    def blocks(self) -> list[nn.Module]:
        return []

    @property
    def layer_numbers(self) -> list[int]:
        """Of the layers that `all_layers` gives: 0 for the embedded input, n for what the nth block gives; those of
        another width are left out."""
        return [*range(1 + len(self.blocks()))]

    @property
    def layer_count(self) -> int:
        """How many layers `all_layers` gives."""
        return len(self.layer_numbers)

    def input_parameters(self) -> list[nn.Parameter]:
        """The weights below its blocks: all that is in none and no part of the summary."""
        above = {*self.pooler_parameters(), *(weight for block in self.blocks() for weight in block.parameters())}
        return [weight for weight in self.parameters() if weight not in above]

    def forward(
        self, rows: TokenBatch, *, state: State | None = None, all_layers: bool = False, record: Recorder | None = None
    ) -> EncoderOutput:
        return self.contextualize(self.embed(rows), rows, state=state, all_layers=all_layers, record=record)


@dataclass(frozen=True, kw_only=True)
class DecodingState(Tensors):
    """The state of a writer that writes from other texts: row r writes from text r // (rows / texts)."""

    source: Tensors  # texts first: what the decoder keeps of each, computed once
    own: Tensors  # rows first: what it has written so far

    def select(self, rows: Tensor, texts: Tensor | None = None) -> Self:
        """These rows, in this order, and these texts (None: all that there are)."""
        return replace(
            self,
            source=self.source if texts is None else self.source.index_select(texts),
            own=self.own.index_select(rows),
        )


class Decoder(nn.Module):
    """What writes, where an encoder reads: ids, each by those before it and by the vectors of another text."""

    vocab_size: int
    """How many ids it writes."""
    width: int
    """Of the vectors that foretell them."""

    def __init__(self, encoder: Encoder, vocabulary: int, width: int, *, shared: bool):
        super().__init__()
        self.vocab_size, self.width = vocabulary, width
        self.lender = (encoder,)
        """Whose words it uses, if it has none: in a tuple, as they are the encoder's weights and not its own."""
        self.words = None if shared and vocabulary == encoder.vocab_size else nn.Embedding(vocabulary, width)

    def word_embeddings(self) -> Tensor:
        """[vocabulary, width]: the vectors of what it has written."""
        table = self.lender[0].word_embeddings() if self.words is None else self.words.weight
        assert table is not None, "who lends words has a vector for each"
        return table

    def project_source(self, output: EncoderOutput, batch: TokenBatch) -> Tensors:
        """What it keeps of the texts that it writes from, texts first: whatever need not be computed at each step."""
        raise NotImplementedError

    def new_state(self, source: Tensors, batch_size: int) -> Tensors:
        """The state of `batch_size` sequences before their first id."""
        raise NotImplementedError

    def forward(
        self, ids: Tensor, source: Tensors, state: State | None = None, *, record: Recorder | None = None
    ) -> tuple[Tensor, State]:
        """[rows, time, width]: what foretells the id after each of these further ids [rows, time], and the state after
        them. Without a state they are the first, as all of a text is in training, and no state need be made."""
        raise NotImplementedError

    def logits(self, vectors: Tensor) -> Tensor:
        """[..., vocabulary]: how likely each id is, as a softmax takes it."""
        raise NotImplementedError

    def blocks(self) -> list[nn.Module]:
        return []
