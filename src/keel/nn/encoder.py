"""Encoder and decoder: the interfaces of all networks."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor, nn

from keel.data.token_batch import SubwordUnits, TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.training.objective import Objective, State, Tensors


@dataclass(frozen=True, kw_only=True)
class EncoderOutput:
    """The output of an encoder."""

    top: Tensor  # [batch, time, width]
    layers: list[Tensor] = field(default_factory=list)
    """With `all_layers`: the embedded input, then every block's output, [batch, time, width]; the last is `top`."""
    state: State | None = None


class Recorder(Protocol):
    """A callback that gets intermediate results of a network, such as attention weights."""

    def __call__(self, name: str, layer: int, value: Tensor) -> None: ...


@dataclass(frozen=True)
class SelectedLayers:
    """A recorder of some layers, numbered from 0: the others compute no attention weights."""

    record: Recorder
    layers: Collection[int]

    def __call__(self, name: str, layer: int, value: Tensor) -> None:
        self.record(name, layer, value)


@dataclass(frozen=True, kw_only=True)
class ForwardOptions:
    """What a forward pass of an encoder continues and returns."""

    state: State | None = None
    """Recurrent state, or KV cache, of the tokens before."""
    all_layers: bool = False
    """Return the vectors of all layers."""
    record: Recorder | None = None

    def layer_recorder(self, layer: int) -> Callable[[str, Tensor], None] | None:
        """The recorder of one layer, if anything is recorded there."""
        record = self.record
        if isinstance(record, SelectedLayers) and layer not in record.layers:
            return None
        return None if record is None else lambda name, value: record(name, layer, value)


class Encoder(nn.Module):
    """Token ids to vectors. Static word vectors are an encoder without blocks."""

    vocab_size: int
    width: int
    """Width of the output vectors."""

    @property
    def accepts_packed(self) -> bool:
        """Whether it takes packed batches, on its present device and dtype."""
        return False

    default_pool: Literal["mean", "sif"] = "mean"
    """How the vectors of a text's tokens become its embedding, unless a folder defines it."""

    @property
    def sparse(self) -> bool:
        """Whether its vectors are sparse and as wide as the vocabulary: use `pooled_features` only."""
        return False

    @property
    def bag_of_words(self) -> bool:
        """Whether a text is one vector of its words in any order, without a vector per token."""
        return self.sparse

    @property
    def embedding_table(self) -> nn.Embedding | None:
        """The table of word embeddings: the child `words`, if there is one."""
        words = dict(self.named_children()).get("words")
        return words if isinstance(words, nn.Embedding) else None

    def word_embeddings(self) -> Tensor | None:
        """[vocabulary, width] context-independent word embeddings, if there are any."""
        return None if self.embedding_table is None else self.embedding_table.weight

    def extra_files(self, tokenizer: Tokenizer) -> dict[str, str]:
        """Further files of the model folder, for human readers, by name."""
        return {}

    def embed(self, batch: TokenBatch) -> Tensor:
        """[batch, time, width] input embeddings: words, positions and segments."""
        raise NotImplementedError

    def input_embeddings(self, batch: TokenBatch) -> Tensor:
        """[batch, time, width]: those that the batch carries, for attributions, or those of its ids (`embed`)."""
        return self.embed(batch) if batch.embeddings is None else batch.embeddings

    def contextualize(
        self, vectors: Tensor, batch: TokenBatch, options: ForwardOptions = ForwardOptions()
    ) -> EncoderOutput:
        """The output of the blocks on input embeddings [batch, time, width]."""
        return EncoderOutput(top=vectors, layers=[vectors] if options.all_layers else [])

    def used_embeddings(self, units: SubwordUnits) -> tuple[dict[str, Tensor], SubwordUnits]:
        """The rows of each embedding table that these subword units use, and the units by their index among these."""
        return {}, units

    def pool_features(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        """[batch, width] features of the pooled output, by default the mean over tokens; without weights, so that they
        can be cached."""
        inside = torch.arange(batch.ids.shape[1], device=batch.ids.device) < batch.lengths[:, None]
        return (output.top * inside[..., None]).sum(1) / batch.lengths[:, None].clamp(min=1)

    def pooled_features(self, batch: TokenBatch) -> Tensor:
        """[batch, width]: `pool_features` of the output; a system may compute no more than that."""
        return self.pool_features(self(batch), batch)

    def inference_features(self, batch: TokenBatch) -> Tensor:
        """[batch, width]: `pooled_features` without gradients, for a linear layer; in CSR format if they are sparse."""
        return self.pooled_features(batch)

    def pool_projection(self, features: Tensor) -> Tensor:
        """[batch, width] pooled output of the features, by the pooler's weights if there are any."""
        return features

    def pooler_parameters(self) -> list[nn.Parameter]:
        """The weights of `pool_projection`."""
        return []

    @property
    def projects_tokens(self) -> bool:
        """Whether heads on single tokens read `pool_projection` of their vectors, as those on whole texts do."""
        return False

    def pool(self, output: EncoderOutput, batch: TokenBatch) -> Tensor:
        """[batch, width] pooled output: one vector per sequence."""
        return self.pool_projection(self.pool_features(output, batch))

    def blocks(self) -> list[nn.Module]:
        """The blocks, from the input upwards."""
        return []

    @property
    def layer_numbers(self) -> list[int]:
        """The numbers of the layers that `all_layers` gives: 0 for input embeddings, n for the n-th block; layers of
        another width are left out."""
        return [*range(1 + len(self.blocks()))]

    @property
    def layer_count(self) -> int:
        """Number of layers that `all_layers` gives."""
        return len(self.layer_numbers)

    def input_parameters(self) -> list[nn.Parameter]:
        """The weights below the blocks: all that are in no block and not in the pooler."""
        above = {*self.pooler_parameters(), *(weight for block in self.blocks() for weight in block.parameters())}
        return [weight for weight in self.parameters() if weight not in above]

    def forward(
        self, batch: TokenBatch, *, state: State | None = None, all_layers: bool = False, record: Recorder | None = None
    ) -> EncoderOutput:
        options = ForwardOptions(state=state, all_layers=all_layers, record=record)
        return self.contextualize(self.input_embeddings(batch), batch, options)


class EncoderObjective(Objective):
    """An objective that trains an encoder by gradients: its blocks are the encoder's."""

    encoder: Any
    """The encoder; each objective declares which."""
    trained_length: int = 0
    """The maximum sequence length of the model that this run continues; 0 for a new one."""

    @property
    def output_embeddings(self) -> Tensor | None:
        """The weights of the softmax: above the blocks, even if tied to the word embeddings."""
        return None

    def blocks(self) -> list[nn.Module]:
        return self.encoder.blocks()

    def input_parameters(self) -> list[nn.Parameter]:
        return [weight for weight in self.encoder.input_parameters() if weight is not self.output_embeddings]


@dataclass(frozen=True, kw_only=True)
class DecodingState(Tensors):
    """The state of a decoder: sequence i is generated from source i // (batch / sources)."""

    source: Tensors  # sources first: computed once per source
    own: Tensors  # batch first: the decoder's own state

    def select(self, index: Tensor, sources: Tensor | None = None) -> Self:
        """These sequences, in this order, and these sources (None: all)."""
        return replace(
            self,
            source=self.source if sources is None else self.source.index_select(sources),
            own=self.own.index_select(index),
        )


class Decoder(nn.Module):
    """Generates a target text: predicts each token from those before it and from the encoder's output."""

    vocab_size: int
    """Size of the target vocabulary."""
    width: int

    def __init__(self, encoder: Encoder, vocabulary: int, width: int, *, shared: bool):
        super().__init__()
        self.vocab_size, self.width = vocabulary, width
        self.embedding_owner = (encoder,)
        """The encoder whose embeddings it shares, if it does: in a tuple, so that they are not its own parameters."""
        self.words = None if shared and vocabulary == encoder.vocab_size else nn.Embedding(vocabulary, width)

    def word_embeddings(self) -> Tensor:
        """[vocabulary, width] embeddings of the target vocabulary."""
        table = self.embedding_owner[0].word_embeddings() if self.words is None else self.words.weight
        assert table is not None, "an encoder that shares embeddings has a table of them"
        return table

    def project_source(self, output: EncoderOutput, batch: TokenBatch) -> Tensors:
        """What is computed once per source from the encoder's output, sources first."""
        raise NotImplementedError

    def new_state(self, source: Tensors, batch_size: int) -> Tensors:
        """The state before the first token; `batch_size` is a multiple of the sources."""
        raise NotImplementedError

    def forward(
        self, ids: Tensor, source: Tensors, state: State | None = None, *, record: Recorder | None = None
    ) -> tuple[Tensor, State]:
        """[batch, time, width] vectors that predict the token after each of `ids` [batch, time], and the state after
        them. Without a state, as in training, they are the first tokens, and no state need be returned."""
        raise NotImplementedError

    def logits(self, vectors: Tensor) -> Tensor:
        """[..., vocabulary] logits."""
        raise NotImplementedError

    def blocks(self) -> list[nn.Module]:
        """The blocks, from the input upwards."""
        return []
