"""Classification and regression of text pairs: entailment, paraphrase, similarity."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keel.data.collation import EncodedExamples, TokenSelection
from keel.data.examples import Examples, Labels
from keel.data.input_windows import FlatTokens, PackedInputs
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.nn.encoder import Encoder
from keel.nn.inference_loop import eval_mode
from keel.systems.system import System
from keel.tasks.classify import TextClassification


class PairClassification(TextClassification):
    """Cross-encoding: both texts in one sequence with special tokens, so that their words attend to each other.

    With both orders there is a sequence for (a, b) and one for (b, a), and logits = W (h_ab + h_ba) + bias, the pooled
    outputs added (Radford et al. 2018), so that the order does not matter.

    Siamese encoding: each text is encoded alone, and logits = W [u; v; |u - v|; u * v] + b of their pooled outputs u
    and v (Conneau et al. 2017, InferSent).
    """

    name = "pair"
    pair = True
    head_fields = (*TextClassification.head_fields, "orders", "pair_encoding")

    def __init__(self, system: System, encoder: Encoder, tokenizer: Tokenizer, labels: Labels, **settings: Any):
        super().__init__(system, encoder, tokenizer, labels, **settings)
        orders = self.head.orders
        if self.siamese:
            if encoder.bag_of_words:
                raise UsageError(f"{system.name} reads a pair as one bag of words: leave out --pair-encoding siamese")
            if orders != "default":
                raise UsageError("--orders is for --pair-encoding cross: leave out one of them")
            self.sequences_per_window = 2
            return
        if self.head.max_tokens:
            raise UsageError("--max-tokens is for texts that are encoded alone: add --pair-encoding siamese")
        if orders == "default":
            orders = system.finetuning_policy.head_defaults(labels.kind).get("orders", "given")
        self.sequences_per_window = 2 if orders == "both" else 1
        if self.sequences_per_window == 2 and encoder.bag_of_words:
            raise UsageError(f"{system.name} ignores the order of a pair: leave out --orders")

    @property
    def siamese(self) -> bool:
        """Whether each text is encoded alone."""
        return self.head.pair_encoding == "siamese"

    def add_classifier(self, inputs: int) -> None:
        super().add_classifier(4 * inputs if self.siamese else inputs)

    def encode_examples(
        self, examples: Examples, *, batch_size: int = 32, labelled: bool = True, on_event: OnEvent = ignore
    ) -> EncodedExamples:
        data = super().encode_examples(examples, batch_size=batch_size, labelled=labelled, on_event=on_event)
        limit = min(self.system.max_length, self.head.max_tokens or self.system.max_length)
        if self.siamese and (full := int((data.lengths >= limit).sum())):
            what = f"{pluralize(full, 'text')} of pairs with {limit:,} tokens or more"
            note(on_event, f"{examples.source}: {what}: only the first {limit:,} are read")
        return data

    @property
    def settings(self) -> dict[str, Any]:
        if self.siamese:
            return super().settings | {"pair_encoding": "siamese"}
        return super().settings | ({"orders": "both"} if self.sequences_per_window == 2 else {})

    def build_packed_inputs(self, first_texts: FlatTokens, second_texts: FlatTokens | None, room: int) -> PackedInputs:
        if self.siamese and second_texts is not None:
            room = self.system.text_room(self.tokenizer, self.head.max_tokens)
            first = super().build_packed_inputs(first_texts.truncate(room), None, room)
            return first.interleave(super().build_packed_inputs(second_texts.truncate(room), None, room))
        if self.sequences_per_window == 1 or second_texts is None:
            return super().build_packed_inputs(first_texts, second_texts, room)
        room -= room % 2  # equal halves: both orders have the same windows
        given = super().build_packed_inputs(first_texts, second_texts, room)
        return given.interleave(super().build_packed_inputs(second_texts, first_texts, room))

    def classifier_inputs(self, data: EncodedExamples) -> Tensor:
        if not self.siamese:  # both orders of a pair are added
            return super().classifier_inputs(data)
        return compare_vectors(*self.frozen_features(data).float().cpu().view(len(data.examples), 2, -1).unbind(1))

    def predict_logits(self, features: Tensor, selection: TokenSelection | None = None) -> Tensor:
        """[batch, outputs]: logits; with both orders the summands of each sequence; with siamese encoding [batch,
        width], the pooled output of each text."""
        if self.siamese:
            own_pooler = self.network is None and self.pool == "default"
            return self.encoder.pool_projection(features) if own_pooler else features
        logits = super().predict_logits(features, selection)
        return logits if self.sequences_per_window == 1 else logits - self.classifier.bias / 2

    def combine_groups(self, logits: Tensor, members: Tensor) -> Tensor:
        if not self.siamese:
            return logits[members].sum(1)
        u, v = logits[members].unbind(1)  # [pairs, width]
        return self.classifier(self.dropout(compare_vectors(u, v)))

    def predict_all_logits(self, data: EncodedExamples, batch: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        found = super().predict_all_logits(data, batch)
        if not self.siamese:
            yield from found
            return
        pooled = torch.empty(len(data.example_indices), self.classifier.in_features // 4)
        for index, vectors in found:
            pooled[torch.from_numpy(index)] = vectors
        for start in range(0, len(pooled), 2 * batch):
            part = pooled[start : start + 2 * batch].to(self.classifier.weight)
            members = torch.arange(len(part), device=part.device).view(-1, 2)
            with eval_mode(self), torch.inference_mode():
                yield np.arange(start, start + len(part), 2), self.combine_groups(part, members).cpu()


def compare_vectors(u: Tensor, v: Tensor) -> Tensor:
    """[pairs, 4 * width]: u, v, |u - v| and u * v."""
    return torch.cat([u, v, (u - v).abs(), u * v], 1)
