"""What single systems and objectives can do beyond what all can: small protocols, checked by `isinstance`."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from keel.data.token_batch import SubwordUnits, TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.nn.encoder import Recorder
from keel.training.objective import State, Tensors


@runtime_checkable
class SubwordFeatures(Protocol):
    """A system that computes word vectors from characters or n-grams, also those of unknown words."""

    def subword_units(self, ids: Sequence[int], tokenizer: Tokenizer) -> SubwordUnits:
        """The subword units of these words."""
        ...


@runtime_checkable
class DropoutSystem(Protocol):
    """A system with a dropout probability, which its task heads take as well."""

    @property
    def dropout(self) -> float: ...


@runtime_checkable
class LanguageModelSystem(Protocol):
    """A system whose objective predicts every token from its context: perplexity is defined for it."""

    @property
    def context_description(self) -> str:
        """The context that a token is predicted from, in words."""
        ...


@runtime_checkable
class CausalLM(Protocol):
    """Autoregressive model: predicts the next token from the tokens before it, step by step."""

    @property
    def bos_id(self) -> int:
        """Id of the token before every text."""
        ...

    @property
    def eos_id(self) -> int | None:
        """Id of the token that ends a sentence or document; None if the model does not predict it."""
        ...

    @property
    def max_context(self) -> int | None:
        """Maximum context length in tokens; None without limit."""
        ...

    def new_state(self, batch_size: int) -> Tensors | None:
        """State of a batch before its first token, batch dimension first; None if there is none."""
        ...

    def step(self, ids: Tensor, state: State | None, record: Recorder | None = None) -> tuple[Tensor, Tensors]:
        """Logits [batch, vocab_size] of the token after `ids` [batch, time] (on any device), and the new state.

        The caller may reorder the state and write into the logits; `record` receives attention weights.
        """
        ...


@runtime_checkable
class NextTokenLoss(Protocol):
    """A language model whose loss is computed from its encoder's output."""

    @property
    def is_causal(self) -> bool:
        """Whether this output depends on earlier tokens only."""
        ...

    def nll(self, top: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        """The sum of weights * -log p(targets), both [batch, time], of an encoder's output [batch, time, width]."""
        ...


@runtime_checkable
class MaskedLM(Protocol):
    """An objective that predicts masked tokens."""

    def masked_logits(self, inputs: TokenBatch, positions: Tensor) -> Tensor:
        """[batch, positions, vocabulary] logits at `positions` [batch, positions] of these inputs."""
        ...


@runtime_checkable
class WindowedEvaluation(Protocol):
    """A language model that is evaluated over a text in windows, which overlap if the stride is smaller."""

    @property
    def window(self) -> int:
        """Tokens per window."""
        ...

    def window_count(self, data: Any, stride: int) -> int:
        """How many windows predict each token of the text once."""
        ...

    def window_batch(self, data: Any, stride: int, examples: range) -> Tensors:
        """The windows of these indices as a batch: each token has at least window - stride tokens of context.

        Each loss and count of it is two numbers: over all tokens, and without the ends of documents.
        """
        ...


@runtime_checkable
class SequentialEvaluation(Protocol):
    """A language model that is evaluated over a text from start to end, its state carried from part to part."""

    def sequential_batch(self, data: Any, number: int) -> Tensors:
        """Part `number` of the text as a batch; losses and counts as in `WindowedEvaluation.window_batch`."""
        ...
