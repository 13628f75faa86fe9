"""Classification and regression of text pairs: entailment, paraphrase, similarity."""

from typing import Any

from torch import Tensor

from keel.data.collation import TokenSelection
from keel.data.examples import Labels
from keel.data.input_windows import FlatTokens, PackedInputs
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.nn.encoder import Encoder
from keel.systems.system import System
from keel.tasks.classify import TextClassification


class PairClassification(TextClassification):
    """Both texts in one sequence, separated by special tokens, so that their words attend to each other.

    With both orders there is a sequence for (a, b) and one for (b, a), and logits = W (h_ab + h_ba) + bias, the pooled
    outputs added (Radford et al. 2018), so that the order does not matter.
    """

    name = "pair"
    pair = True
    head_fields = (*TextClassification.head_fields, "orders")

    def __init__(self, system: System, encoder: Encoder, tokenizer: Tokenizer, labels: Labels, **settings: Any):
        super().__init__(system, encoder, tokenizer, labels, **settings)
        orders = self.head.orders
        if orders == "default":
            orders = system.finetuning_policy.head_defaults(labels.kind).get("orders", "given")
        self.sequences_per_window = 2 if orders == "both" else 1
        if self.sequences_per_window == 2 and encoder.bag_of_words:
            raise UsageError(f"{system.name} ignores the order of a pair: leave out --orders")

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({"orders": "both"} if self.sequences_per_window == 2 else {})

    def build_packed_inputs(self, first_texts: FlatTokens, second_texts: FlatTokens | None, room: int) -> PackedInputs:
        if self.sequences_per_window == 1 or second_texts is None:
            return super().build_packed_inputs(first_texts, second_texts, room)
        room -= room % 2  # equal halves: both orders have the same windows
        given = super().build_packed_inputs(first_texts, second_texts, room)
        return given.interleave(super().build_packed_inputs(second_texts, first_texts, room))

    def predict_logits(self, features: Tensor, selection: TokenSelection | None = None) -> Tensor:
        """[batch, outputs]: logits; with both orders the summands of each sequence."""
        logits = super().predict_logits(features, selection)
        return logits if self.sequences_per_window == 1 else logits - self.classifier.bias / 2

    def combine_groups(self, logits: Tensor, members: Tensor) -> Tensor:
        return logits[members].sum(1)
