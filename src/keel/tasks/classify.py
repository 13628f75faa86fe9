"""One text to a label, several labels or a number: one linear layer on the encoder's summary of the row."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.data.collation import EncodedExamples, TokenSelection
from keel.data.examples import Examples, Labels
from keel.data.predictions import Predictions
from keel.data.tag_schemes import OUTSIDE, is_entity_tag
from keel.data.tagged_files import looks_tagged
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore
from keel.metrics.scores import Scores, score_labels
from keel.nn.encoder import Encoder, EncoderOutput
from keel.nn.pooling import Pool, pool_tokens
from keel.systems.system import System
from keel.tasks.task import HeadSettings, Task


class TextClassification(Task):
    """logits = W dropout(summary) + b, the head of BERT's paper and of Hugging Face's sequence classification.

    With a network, W reads what that makes of all vectors of the text.
    """

    name: ClassVar[str] = "classify"
    head_fields: ClassVar[tuple[str, ...]] = (*HeadSettings.NETWORK, "pool", "mix", "lm_loss")
    pool: Pool = "default"

    def __init__(self, system: System, encoder: Encoder, tokenizer: Tokenizer, labels: Labels, **settings: Any):
        super().__init__(system, encoder, tokenizer, labels, **settings)
        if self.network is None:
            self.pool = system.default_pool if self.head.pool == "default" else self.head.pool
        elif self.head.pool != "default":
            raise UsageError("--network sums a text up in a way of its own: leave out --pool")
        if self.pool != "default":
            if encoder.sparse:
                raise UsageError(f"{system.name} has no vector for each word, only one for a text: leave out --pool")
            for parameter in encoder.pooler_parameters():  # nothing would teach them
                parameter.requires_grad_(False)
        self.dropout = nn.Dropout(getattr(system, "dropout", 0.1))
        self.classifier = nn.Linear(self.width * (3 if self.pool == "concat" else 1), labels.outputs)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    @classmethod
    def label_schema(cls, examples: Examples) -> Labels:
        names = examples.names
        entities = OUTSIDE in names and any("-" in name for name in names) and all(map(is_entity_tag, names))
        bare = examples.kind is None and not examples.columns and examples.seconds is None
        if entities or (bare and looks_tagged(examples.texts)):
            what = f"{examples.source} looks like words and their tags, and {cls.name} takes labelled texts"
            raise KeelError(f"{what}: say --task tag, or name the labels' column with --label-column")
        return super().label_schema(examples)

    def select_features(self, rows: TokenBatch, asked: TokenSelection | None = None) -> Tensor:
        if self.network is not None:
            return self.network.max_pooled(self.mixed_layers(rows), rows.lengths)
        return self.encoder.pooled_features(rows) if self.pool == "default" else super().select_features(rows)

    def features_from_output(
        self, output: EncoderOutput, rows: TokenBatch, asked: TokenSelection | None = None
    ) -> Tensor:
        return (
            self.encoder.pool_features(output, rows)
            if self.pool == "default"
            else pool_tokens(output.top, rows, self.pool)
        )

    def predict_logits(self, picked: Tensor, asked: TokenSelection | None = None) -> Tensor:
        """[batch, outputs]: logits, or the number itself."""
        if self.network is not None:
            return self.classifier(picked)
        summary = self.encoder.pool_projection(picked) if self.pool == "default" else picked
        return self.system.finetuning_policy.label_logits(self.classifier(self.dropout(summary)))

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({} if self.pool == "default" else {"pool": self.pool})

    def head_parameters(self) -> list[nn.Parameter]:
        # What next sentence prediction has left in BERT's pooler is a poor feature, and a head that went around the
        # pooler would be no BERT to other libraries.
        return self.encoder.pooler_parameters() if self.network is None and self.pool == "default" else []

    def example_losses(self, response: Tensor, targets: Tensor, asked: TokenSelection | None = None) -> Tensor:
        """Cross entropy, its mean over labels that each stand alone, or the squared error."""
        if self.labels.kind == "one":
            return F.cross_entropy(response, targets, reduction="none")
        if self.labels.kind == "several":
            return F.binary_cross_entropy_with_logits(response, targets, reduction="none").mean(1)
        return (response[:, 0] - targets).square()

    def predict(self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore) -> Predictions:
        """Answers for all examples; windows of one text are merged by the mean of their logits."""
        if isinstance(data, Examples):
            data = self.encode_examples(data, labelled=False, on_event=on_event)
        logits = torch.zeros(len(data.examples), self.labels.outputs)
        for index, response in self.predict_all_logits(data, batch):
            shares = torch.from_numpy(data.weights[index])[:, None]
            logits.index_add_(0, torch.from_numpy(data.example_indices[index]), response * shares)
        if self.labels.kind == "number":
            return Predictions(self.labels, logits[:, 0].numpy())
        apart = self.labels.kind == "several" or self.system.finetuning_policy.one_vs_rest
        return Predictions(self.labels, (logits.sigmoid() if apart else logits.softmax(1)).numpy())

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        return score_labels(examples, predictions)
