"""Two texts to a label, several labels or a number: entailment, paraphrase, similarity."""

from typing import Any, ClassVar

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
    """Both texts stand in one row, the system's marks between them, so that every word of one can look at the other.

    In both orders there is a row for each, (a, b) and (b, a), and logits = W (summary + summary') + bias (Radford et
    al. 2018): who is named first makes no difference.
    """

    name: ClassVar[str] = "pair"
    pair: ClassVar[bool] = True
    head_fields: ClassVar[tuple[str, ...]] = (*TextClassification.head_fields, "orders")

    def __init__(self, system: System, encoder: Encoder, tokenizer: Tokenizer, labels: Labels, **settings: Any):
        super().__init__(system, encoder, tokenizer, labels, **settings)
        own = system.finetuning_policy.head_defaults(labels.kind).get("orders", "given")
        self.sequences_per_window = 2 if (own if self.head.orders == "default" else self.head.orders) == "both" else 1
        if self.sequences_per_window == 2 and (encoder.sparse or getattr(encoder, "bags", False)):
            raise UsageError(f"{system.name} reads a pair without order, both ways the same: leave out --orders")

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({"orders": "both"} if self.sequences_per_window == 2 else {})

    def build_packed_inputs(self, firsts: FlatTokens, seconds: FlatTokens | None, room: int) -> PackedInputs:
        if self.sequences_per_window == 1 or seconds is None:
            return super().build_packed_inputs(firsts, seconds, room)
        room -= room % 2  # cut into equal halves, both orders have the same windows
        return (
            super()
            .build_packed_inputs(firsts, seconds, room)
            .interleave(super().build_packed_inputs(seconds, firsts, room))
        )

    def predict_logits(self, picked: Tensor, asked: TokenSelection | None = None) -> Tensor:
        """[batch, outputs]: logits, or the number itself; in both orders what is to be added up of each row."""
        response = super().predict_logits(picked, asked)
        return response if self.sequences_per_window == 1 else response - self.classifier.bias / 2

    def combine_groups(self, response: Tensor, members: Tensor) -> Tensor:
        return response[members].sum(1)
