"""Text classification and regression: a linear layer on the pooled output."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from keel.data.collation import EncodedExamples, TokenSelection
from keel.data.examples import Examples, Labels
from keel.data.label_kinds import MultiLabel, SingleLabel, positive_class
from keel.data.predictions import Predictions
from keel.data.tag_schemes import OUTSIDE, is_entity_tag
from keel.data.tagged_files import looks_tagged
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.metrics.calibration import DEFAULT_THRESHOLD, fit_temperature, fit_threshold
from keel.metrics.label_scores import score_labels
from keel.metrics.scores import Scores
from keel.nn.encoder import Encoder, EncoderOutput
from keel.nn.pooling import Pool, pool_tokens
from keel.systems.system import System
from keel.tasks.class_weights import check_class_weights, class_weights
from keel.tasks.head_settings import HeadSettings
from keel.tasks.task import Task

TRAINING_ONLY = ("class_weights", "calibrate", "threshold")
"""Settings of the head that say how to train or tune; the tuned values are stored instead."""


class TextClassification(Task):
    """logits = W dropout(pooled output) + b, as in BERT's paper and Hugging Face's sequence classification.

    With a head network, W reads the network's pooled output.
    """

    name = "classify"
    linear_head = True
    head_fields = (
        *(*HeadSettings.NETWORK, "pool", "normalize", "max_tokens", "mix", "lm_loss"),
        *("class_weights", "threshold", "calibrate"),
    )
    pool: Pool = "default"
    class_weights: Tensor | None

    def __init__(
        self,
        system: System,
        encoder: Encoder,
        tokenizer: Tokenizer,
        labels: Labels,
        *,
        temperature: float = 1.0,
        **settings: Any,
    ):
        super().__init__(system, encoder, tokenizer, labels, **settings)
        self.temperature = temperature
        """Temperature of the probabilities: softmax(logits / temperature)."""
        self.threshold = DEFAULT_THRESHOLD if self.head.threshold == "auto" else self.head.threshold
        check_class_weights(self.head.class_weights, labels)
        self._check_decisions()
        self.register_buffer("class_weights", None, persistent=False)
        if self.network is None:
            self.pool = system.default_pool if self.head.pool == "default" else self.head.pool
        elif self.head.pool != "default":
            raise UsageError("--network has a pooling of its own: leave out --pool")
        if self.head.normalize and self.pool == "default":
            raise UsageError("--normalize is for pooled token vectors: add --pool mean, or leave it out")
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
        if self.pool != "default":
            return super().select_features(inputs)
        inference = torch.is_inference_mode_enabled()
        return self.encoder.inference_features(inputs) if inference else self.encoder.pooled_features(inputs)

    def head_features(self, output: EncoderOutput, inputs: TokenBatch, selection: TokenSelection | None) -> Tensor:
        if self.pool == "default":
            return self.encoder.pool_features(output, inputs)
        pooled = pool_tokens(output.top, inputs, self.pool)
        # To length sqrt(width), not 1: each number is then as large as a classifier's learning rate expects.
        return nn.functional.normalize(pooled) * pooled.shape[-1] ** 0.5 if self.head.normalize else pooled

    def classifier_inputs(self, data: EncodedExamples) -> Tensor:
        """[examples, inputs of the classifier] of a frozen encoder's features: their mean over the windows of a text,
        since logits are averaged."""
        weighted = self.frozen_features(data).float().cpu() * torch.from_numpy(data.weights)[:, None]
        found = weighted.new_zeros(len(data.examples), weighted.shape[1])
        return found.index_add_(0, torch.from_numpy(data.example_indices), weighted)

    def predict_logits(self, features: Tensor, selection: TokenSelection | None = None) -> Tensor:
        """[batch, outputs]: logits, or the predicted number."""
        if self.network is not None:
            return self.classifier(features)
        pooled_output = self.encoder.pool_projection(features) if self.pool == "default" else features
        scores = self.classifier(self.dropout(pooled_output))
        return self.system.finetuning_policy.label_logits(scores, self.labels.counts)

    def _check_decisions(self) -> None:
        """Refuse a threshold without two classes or several labels, and calibration of anything but classes."""
        kind, head = self.labels.kind, self.head
        binary = isinstance(kind, SingleLabel) and len(self.labels.names) == 2
        if head.threshold != DEFAULT_THRESHOLD and not (binary or isinstance(kind, MultiLabel)):
            what = f"there are {len(self.labels.names)} classes" if kind.has_classes else "these labels are numbers"
            raise UsageError(f"--threshold is for two classes or multi-label data, and {what}: leave it out")
        if head.calibrate and not isinstance(kind, SingleLabel | MultiLabel):
            raise UsageError("--calibrate is for classes, and these labels are numbers: leave it out")

    @property
    def settings(self) -> dict[str, Any]:
        """Those of inference: the tuned threshold and temperature, and nothing that only training needs."""
        found = {name: value for name, value in super().settings.items() if name not in TRAINING_ONLY}
        found |= {} if self.pool == "default" else {"pool": self.pool}
        found |= {} if self.temperature == 1 else {"temperature": self.temperature}
        return found | ({} if self.threshold == DEFAULT_THRESHOLD else {"threshold": self.threshold})

    def head_parameters(self) -> list[nn.Parameter]:
        # The pooler that next-sentence prediction trained is a poor feature, and a head without it would not be a BERT
        # to other libraries.
        return self.encoder.pooler_parameters() if self.network is None and self.pool == "default" else []

    def example_losses(self, logits: Tensor, targets: Tensor, selection: TokenSelection | None = None) -> Tensor:
        return self.labels.kind.loss(logits, targets, self.class_weights)

    def setup(self, data: EncodedExamples) -> None:
        """Compute the class weights of the training examples."""
        super().setup(data)
        assert data.targets is not None
        self.class_weights = class_weights(self.head.class_weights, self.labels, data.targets)

    def predict(self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore) -> Predictions:
        """Predictions for all examples; the logits of a text's windows are averaged."""
        logits = self.predict_example_logits(data, batch=batch, on_event=on_event)
        return Predictions(self.labels, self.label_probabilities(logits), threshold=self.threshold)

    def predict_example_logits(
        self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore
    ) -> Tensor:
        """[examples, outputs]: logits, averaged over the windows of a text."""
        if isinstance(data, Examples):
            data = self.encode_examples(data, labelled=False, on_event=on_event)
        logits = torch.zeros(len(data.examples), self.labels.outputs)
        for index, found in self.predict_all_logits(data, batch):
            weights = torch.from_numpy(data.weights[index])[:, None]
            logits.index_add_(0, torch.from_numpy(data.example_indices[index]), found * weights)
        return logits

    def label_probabilities(self, logits: Tensor) -> np.ndarray:
        """Probabilities of the labels [examples, outputs], or the predicted numbers [examples], from logits."""
        one_vs_rest = self.system.finetuning_policy.one_vs_rest
        scaled = logits if self.temperature == 1 else logits / self.temperature
        return self.labels.kind.probabilities(scaled, one_vs_rest=one_vs_rest).numpy()

    def tune_decisions(self, dev: Examples, on_event: OnEvent = ignore) -> None:
        if not self.head.tuned_on_dev:
            return
        self.temperature = 1.0  # a threshold that was given stays
        if self.head.threshold == "auto":
            self.threshold = DEFAULT_THRESHOLD
        dev = self.labels.seen_part(dev)
        logits, targets = self.predict_example_logits(dev), self.labels.targets(dev)
        several = isinstance(self.labels.kind, MultiLabel)
        found: list[str] = []
        if self.head.calibrate:
            if self.system.finetuning_policy.one_vs_rest:  # a binary classifier for each class
                targets = torch.nn.functional.one_hot(targets, logits.shape[1])
            one_hot = targets.dim() > 1
            self.temperature = round(fit_temperature(logits, targets, sigmoid=one_hot), 4)
            found.append(f"temperature {self.temperature:.3g}")
        if self.head.threshold == "auto":
            truth, estimates = self.labels.targets(dev).numpy(), self.label_probabilities(logits)
            positive = positive_class(self.labels.names)
            chosen = (estimates.ravel(), truth.ravel() > 0) if several else (estimates[:, positive], truth == positive)
            self.threshold = fit_threshold(*chosen)
            found.append(f"threshold {self.threshold:.3g}")
        note(
            on_event, f"tuned on {pluralize(len(dev), 'dev example')}, whose scores are optimistic: {', '.join(found)}"
        )

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        return score_labels(examples, predictions.with_labels(predictions.labels.including(examples)))
