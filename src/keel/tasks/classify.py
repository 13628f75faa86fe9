"""Text classification and regression: a linear layer on the pooled output."""

from typing import Any

import torch
from torch import Tensor, nn

from keel.data.collation import EncodedExamples, TokenSelection
from keel.data.examples import Examples, Labels
from keel.data.predictions import Predictions
from keel.data.tag_schemes import OUTSIDE, is_entity_tag
from keel.data.tagged_files import looks_tagged
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore
from keel.metrics.label_scores import score_labels
from keel.metrics.scores import Scores
from keel.nn.encoder import Encoder, EncoderOutput
from keel.nn.pooling import Pool, pool_tokens
from keel.systems.system import System
from keel.tasks.head_settings import HeadSettings
from keel.tasks.task import Task


class TextClassification(Task):
    """logits = W dropout(pooled output) + b, as in BERT's paper and Hugging Face's sequence classification.

    With a head network, W reads the network's pooled output.
    """

    name = "classify"
    head_fields = (*HeadSettings.NETWORK, "pool", "mix", "lm_loss")
    pool: Pool = "default"

    def __init__(self, system: System, encoder: Encoder, tokenizer: Tokenizer, labels: Labels, **settings: Any):
        super().__init__(system, encoder, tokenizer, labels, **settings)
        if self.network is None:
            self.pool = system.default_pool if self.head.pool == "default" else self.head.pool
        elif self.head.pool != "default":
            raise UsageError("--network has a pooling of its own: leave out --pool")
        if self.pool != "default":
            if encoder.sparse:
                raise UsageError(f"{system.name} has no vector per word, only one per text: leave out --pool")
            for parameter in encoder.pooler_parameters():  # unused
                parameter.requires_grad_(False)
        self.add_classifier(self.width * (3 if self.pool == "concat" else 1))

    @classmethod
    def label_schema(cls, examples: Examples) -> Labels:
        names = examples.names
        entities = OUTSIDE in names and any("-" in name for name in names) and all(map(is_entity_tag, names))
        bare = examples.kind is None and not examples.columns and examples.seconds is None
        if entities or (bare and looks_tagged(examples.texts)):
            what = f"{examples.source} looks like words with tags, and --task {cls.name} needs labelled texts"
            raise KeelError(f"{what}: use --task tag, or name the column of the labels with --label-column")
        return super().label_schema(examples)

    def select_features(self, inputs: TokenBatch, selection: TokenSelection | None = None) -> Tensor:
        if self.network is not None:
            return self.network.max_pooled(self.mixed_layers(inputs), inputs.lengths)
        return self.encoder.pooled_features(inputs) if self.pool == "default" else super().select_features(inputs)

    def head_features(self, output: EncoderOutput, inputs: TokenBatch, selection: TokenSelection | None) -> Tensor:
        if self.pool == "default":
            return self.encoder.pool_features(output, inputs)
        return pool_tokens(output.top, inputs, self.pool)

    def predict_logits(self, features: Tensor, selection: TokenSelection | None = None) -> Tensor:
        """[batch, outputs]: logits, or the predicted number."""
        if self.network is not None:
            return self.classifier(features)
        pooled_output = self.encoder.pool_projection(features) if self.pool == "default" else features
        scores = self.classifier(self.dropout(pooled_output))
        return self.system.finetuning_policy.label_logits(scores, self.labels.counts)

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({} if self.pool == "default" else {"pool": self.pool})

    def head_parameters(self) -> list[nn.Parameter]:
        # The pooler that next-sentence prediction trained is a poor feature, and a head without it would not be a BERT
        # to other libraries.
        return self.encoder.pooler_parameters() if self.network is None and self.pool == "default" else []

    def example_losses(self, logits: Tensor, targets: Tensor, selection: TokenSelection | None = None) -> Tensor:
        return self.labels.kind.loss(logits, targets)

    def predict(self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore) -> Predictions:
        """Predictions for all examples; the logits of a text's windows are averaged."""
        if isinstance(data, Examples):
            data = self.encode_examples(data, labelled=False, on_event=on_event)
        logits = torch.zeros(len(data.examples), self.labels.outputs)
        for index, found in self.predict_all_logits(data, batch):
            weights = torch.from_numpy(data.weights[index])[:, None]
            logits.index_add_(0, torch.from_numpy(data.example_indices[index]), found * weights)
        one_vs_rest = self.system.finetuning_policy.one_vs_rest
        return Predictions(self.labels, self.labels.kind.probabilities(logits, one_vs_rest=one_vs_rest).numpy())

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        return score_labels(examples, predictions)
