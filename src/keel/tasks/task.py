"""What every task shares: encoding of examples, batches, features of a frozen encoder, inference."""

import math
from collections.abc import Callable, Collection, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from keel.data.collation import EncodedExamples, TaskBatch, TokenSelection
from keel.data.examples import DEFAULT_COLUMNS, Columns, Example, Examples, Labels, read_examples, skip_unlabelled
from keel.data.input_windows import FlatTokens, PackedInputs, build_packed_inputs
from keel.data.language_mix import only_file, sources_by_language
from keel.data.predictions import Predictions
from keel.data.table_sources import load_table
from keel.data.tables import choose_columns
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note
from keel.metrics.scores import Scores
from keel.metrics.slices import add_language_scores
from keel.nn.encoder import Encoder, EncoderObjective, EncoderOutput
from keel.nn.inference_loop import batched_inference
from keel.nn.pooling import ScalarMix
from keel.systems.capabilities import DropoutSystem
from keel.systems.static_vectors import WordSystem
from keel.systems.system import System
from keel.tasks.embedding_restriction import RestrictedEmbeddings
from keel.tasks.head_settings import HeadSettings
from keel.training.batch_loading import MAX_DATA_SHARE
from keel.training.counter_rng import CounterRng
from keel.training.objective import State
from keel.training.plan import Precision, Train

TrainTokenizer = Callable[[list[str], str], Tokenizer]
"""Trains a tokenizer on texts; the second argument is its kind."""
MAX_PADDED = 1 << 20
"""Tokens of a batch of inference, padding included: some systems read texts of a million tokens."""
MAX_PADDED_CPU = 1 << 10
"""The same on a CPU, where large batches save nothing: long texts come in small ones, with little padding."""


MAX_CACHED = 1 << 32
"""Bytes of a frozen encoder's features up to which they are cached; more are computed in every epoch."""
FROZEN_TAGGING_LR = 1e-2
"""Learning rate of a linear layer on the vectors of a frozen encoder's tokens."""
MIX_LR = 1e-2
"""Smallest learning rate of a scalar mix's weights: at that of the head they stay near their initial mean."""


@dataclass(frozen=True, kw_only=True)
class NoDecodingOptions:
    """Decoding settings of a task that has none."""


class Task(EncoderObjective):
    """An objective with labels: encoder and head, from examples to predictions and scores.

    With `frozen`, the encoder runs once and its features are cached; only the head and `head_parameters` are trained.
    """

    encoder: Encoder
    name: ClassVar[str]
    pair: ClassVar[bool] = False
    """Whether an example is a pair of texts."""
    labels_texts: ClassVar[bool] = True
    """Whether labels are those of whole texts or pairs, as fastText's own classifier needs."""
    linear_head: ClassVar[bool] = False
    """Whether, without network and mix, it is a linear layer on one vector per example (`classifier_inputs`)."""
    head_fields: ClassVar[tuple[str, ...]] = ("mix",)
    """Fields of `HeadSettings` that apply to it."""
    decoding: Any = NoDecodingOptions()
    """Decoding settings, such as those of beam search."""
    sequences_per_window: int = 1
    """Sequences that one prediction is made from."""

    def __init__(
        self,
        system: System,
        encoder: Encoder,
        tokenizer: Tokenizer,
        labels: Labels,
        *,
        frozen: bool = False,
        **head: Any,
    ):
        super().__init__()
        self.system, self.encoder, self.tokenizer, self.labels = system, encoder, tokenizer, labels
        self.frozen = frozen
        self.head = HeadSettings(**head)
        self.network = self.head.build_network(encoder)
        self.width = self.network.width if self.network else encoder.width
        """Input width of the last linear layer."""
        if self.head.mix and encoder.layer_count < 2:
            raise UsageError(f"--mix needs several layers, and {system.name} has one: leave out --mix")
        self.mix = ScalarMix(encoder.layer_count) if self.head.mix else None
        self.precision: Precision = "auto"
        """Precision of inference, as in `Train`."""
        if frozen:
            encoder.requires_grad_(False)
            for parameter in self.head_parameters():
                parameter.requires_grad_(True)

    def add_classifier(self, inputs: int) -> None:
        """The last layer: dropout, and a linear layer from vectors of this width to the labels."""
        self.dropout = nn.Dropout(self.system.dropout if isinstance(self.system, DropoutSystem) else 0.1)
        self.classifier = self._linear(inputs)

    def _linear(self, inputs: int) -> nn.Linear:
        """A linear layer from vectors of this width to the labels, initialised as in BERT."""
        layer = nn.Linear(inputs, self.labels.outputs)
        nn.init.normal_(layer.weight, std=0.02)
        nn.init.zeros_(layer.bias)
        return layer

    @classmethod
    def read_examples(cls, source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
        """Examples of a file, a list or a DataFrame in the format of this task."""
        return read_examples(source, pair=cls.pair, columns=columns, on_event=on_event)

    @classmethod
    def read_labelled(cls, source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
        """The same, without the rows that have no label; they are counted in a note. A source may name the language of
        each file, as a corpus does."""
        if languages := sources_by_language(source, columns.text_column or "text"):
            files = {language: only_file(language, each) for language, each in languages.items()}
            return Examples.join({name: cls.read_labelled(each, columns, on_event) for name, each in files.items()})
        return skip_unlabelled(cls.read_examples(source, columns, on_event), on_event)

    @classmethod
    def label_schema(cls, examples: Examples) -> Labels:
        """Label schema of these examples; refused where there is nothing to train on."""
        return examples.labels

    @classmethod
    def check_scorable(cls, examples: Examples, labels: Labels) -> None:
        """Refuse examples on which a model with these labels cannot be scored."""
        labels.including(examples).targets(examples)

    @classmethod
    def train_tokenizers(
        cls, system: System, examples: Examples, train: TrainTokenizer, *, separate: bool, on_event: OnEvent = ignore
    ) -> tuple[Tokenizer, Tokenizer | None]:
        """Tokenizer of a new model and, if it is another, that of its targets."""
        if separate:
            raise UsageError(f"--text.separate (two vocabularies) is for --task seq2seq, not for {cls.name}")
        choices = [choice for each in examples.choices for choice in each]
        return train(examples.texts + (examples.seconds or []) + choices, system.label_tokenizer), None

    @classmethod
    def finetuning_defaults(cls, system: System, frozen: bool, *, network: bool = False) -> Train:
        """Default fine-tuning hyper-parameters of a system on this task."""
        if network and (frozen or isinstance(system, WordSystem)):  # the network learns most
            return Train(epochs=15, batch=16, lr=3e-3, warmup=0.02)
        if isinstance(system, WordSystem) and not cls.labels_texts:
            return WordSystem.finetuning_defaults(system, frozen)
        defaults = system.finetuning_defaults(frozen)
        return defaults if cls.labels_texts or not frozen else replace(defaults, lr=FROZEN_TAGGING_LR)

    @classmethod
    def default_head(cls, system: System) -> dict[str, Any]:
        """Fields of `HeadSettings` that this task has by default on an encoder of this system."""
        return {}

    @classmethod
    def fit_head(cls, head: HeadSettings, system: System, examples: Examples, given: Collection[str]) -> HeadSettings:
        """The settings of the head with the defaults for these examples; what was given stays."""
        return head

    def load_head_from(self, other: "Task") -> None:
        """Initialise from another task of this class, apart from its encoder."""

    @property
    def settings(self) -> dict[str, Any]:
        """Constructor settings beside encoder, tokenizer and labels."""
        return self.head.non_default()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:  # no dropout: training sees the features that inference sees
            self.encoder.eval()
        return self

    def with_decoding(self, decoding: Any) -> Self:
        """This task with other decoding settings, sharing its weights."""
        if decoding == self.decoding:
            return self
        other = copy(self)
        other.decoding = decoding
        return other

    @classmethod
    def make_example(cls, item: Any, number: int) -> Example:
        """An unlabelled example from an input of `predict`."""
        match item:
            case str() if not cls.pair:
                return Example(item, None, None, f"text {number + 1}")
            case [str(first), str(second)] if cls.pair:
                return Example(first, second, None, f"pair {number + 1}")
        raise cls.wrong_input(item, number, "a pair (first text, second text)" if cls.pair else "a text")

    @classmethod
    def make_examples(cls, source: Any, columns: Columns, on_event: OnEvent | None = None) -> list[Example]:
        """Unlabelled examples from the table, record or records that `predict` is given.

        With `on_event`, missing texts are empty ones, with a note; otherwise they are refused.
        """
        table = load_table(source, columns, ignore, pair=cls.pair)
        if not len(table):
            return []
        text, second, _ = choose_columns(table, columns, pair=cls.pair)
        seconds = [None] * len(table) if second is None else table.texts(second, "second", on_event)
        rows = zip(table.texts(text, "text", on_event), seconds, table.locations, strict=True)
        return [Example(first, other, None, location) for first, other, location in rows]

    @classmethod
    def describe_example(cls, example: Example) -> dict[str, Any]:
        """The input of an example beside its prediction."""
        return {"text": example.text, **({} if example.second is None else {"second": example.second})}

    @staticmethod
    def wrong_input(item: Any, number: int, expected: str) -> UsageError:
        return UsageError(f"item {number + 1} is {item!r:.60}, but this model expects {expected}: correct or drop it")

    def is_single_input(self, item: Any) -> bool:
        """Whether this is one input, not a collection of them."""
        return isinstance(item, str) or (self.pair and isinstance(item, tuple))

    def select_features(self, inputs: TokenBatch, selection: TokenSelection | None = None) -> Tensor:
        """[batch, ..., width]: features of the encoder that the head reads; cached for a frozen encoder."""
        return self.head_features(self.encoder(inputs), inputs, selection)

    def mixed_layers(self, inputs: TokenBatch) -> Tensor:
        """[batch, time, width]: the top layer or, with --mix, the scalar mix of all layers."""
        if self.mix is None:
            return self.encoder(inputs).top
        return self.mix(torch.stack(self.encoder(inputs, all_layers=True).layers, -2))

    def head_features(self, output: EncoderOutput, inputs: TokenBatch, selection: TokenSelection | None) -> Tensor:
        """[batch, ..., width]: features from the top of an encoder's output."""
        raise NotImplementedError

    def predict_logits(self, features: Tensor, selection: TokenSelection | None = None) -> Tensor:
        """[batch, ...]: the head's output for each sequence, or each selected token."""
        raise NotImplementedError

    def head_parameters(self) -> list[nn.Parameter]:
        """The encoder's parameters that the head uses: trained although the encoder is frozen."""
        return self.encoder.pooler_parameters() if self.projects_tokens else []

    @property
    def projects_tokens(self) -> bool:
        """Whether the classifier reads vectors of single tokens through the encoder's pooler."""
        return False

    def project_tokens(self, features: Tensor) -> Tensor:
        """[..., width]: vectors of single tokens as the classifier reads them."""
        return self.encoder.pool_projection(features) if self.projects_tokens else features

    def example_losses(self, logits: Tensor, targets: Tensor, selection: TokenSelection | None = None) -> Tensor:
        """[batch]: the loss of each example."""
        raise NotImplementedError

    def predict(self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore) -> Predictions:
        """A prediction for each example."""
        raise NotImplementedError

    def tune_decisions(self, dev: Examples, on_event: OnEvent = ignore) -> None:
        """Tune on validation examples how labels are decided from logits, if the settings of the head ask for it."""

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        """Scores of these predictions against the labels of the examples."""
        raise NotImplementedError

    def score_languages(self, examples: Examples, predictions: Predictions) -> Scores:
        """The same, and where examples have languages, the scores of each."""
        scores = self.score(examples, predictions)
        return add_language_scores(scores, examples, predictions, self.score) if examples.languages else scores

    def encode_examples(
        self, examples: Examples, *, batch_size: int = 32, labelled: bool = True, on_event: OnEvent = ignore
    ) -> EncodedExamples:
        """Examples as token ids, with targets if `labelled`; a step has `batch_size` sequences."""
        targets = self.labels.targets(examples) if labelled else None
        room = self.system.max_text_length(self.tokenizer, pair=self.pair)
        inputs = self.build_packed_inputs(*self.tokenize_examples(examples, on_event), room)
        counts = inputs.window_counts // self.sequences_per_window
        if long := int((counts > 1).sum()):
            what = f"{long} of {len(examples)} examples are longer than {room} tokens"
            windows = counts[counts > 1].sum()
            note(on_event, f"{examples.source}: {what}: split into {windows} windows, whose logits are averaged")
        return self.collate_inputs(examples, inputs, targets=targets, batch_size=batch_size)

    def tokenize_examples(self, examples: Examples, on_event: OnEvent = ignore) -> tuple[FlatTokens, FlatTokens | None]:
        """Token ids of the texts, or of both texts of pairs, truncated where the head's settings say so."""
        first_texts = self.tokenize(examples.texts)
        if (most := self.head.max_tokens) and not self.pair:
            most = self.system.text_room(self.tokenizer, most)
            if long := int((first_texts.lengths > most).sum()):
                what = f"{long} of {len(examples)} examples are longer than {most} tokens"
                note(on_event, f"{examples.source}: {what} and are truncated; --max-tokens 0 to read all of them")
            first_texts = first_texts.truncate(most)
        return first_texts, self.tokenize(examples.seconds or [""] * len(examples)) if self.pair else None

    def tokenize(self, texts: list[str]) -> FlatTokens:
        """Token ids of these texts, of unknown words too if the system has vectors for them."""
        return FlatTokens(*self.tokenizer.encode_flat(texts, oov_ids=self.system.uses_subwords))

    def build_packed_inputs(self, first_texts: FlatTokens, second_texts: FlatTokens | None, room: int) -> PackedInputs:
        """The texts in the system's input template; those longer than `room` in windows."""
        return build_packed_inputs(self.system, self.tokenizer, first_texts, second_texts, room)

    def collate_inputs(self, examples: Examples, inputs: PackedInputs, **fields: Any) -> EncodedExamples:
        """The inputs of these examples and, for a frozen encoder, their features."""
        ids, segments, starts, counts = inputs
        units, group_starts = None, None
        if self.system.uses_subwords:
            ids, starts, units = self.system.finetuning_policy.subword_inputs(ids, starts, self.tokenizer)
        if self.sequences_per_window > 1:
            group_starts = np.arange(0, len(starts), self.sequences_per_window)
        weights = np.repeat(self.sequences_per_window / counts, counts).astype(np.float32)
        data = EncodedExamples(
            examples=examples,
            ids=ids,
            segments=segments if self.pair and segments.any() and len(segments) == len(ids) else None,
            starts=starts,
            example_indices=np.repeat(np.arange(len(examples)), counts),
            subword_units=units,
            **{"weights": weights, "group_starts": group_starts, **fields},
        )
        # The output of a network over a whole text changes while it learns; its inputs for single words do not.
        cacheable = self.frozen and not self.encoder.sparse and (self.network is None or data.selected is not None)
        cacheable = cacheable and (data.selected is None or len(data.selected) > 0)
        count = len(starts) - 1 if data.selected is None else len(data.selected)
        layers = 1 if self.mix is None else self.encoder.layer_count
        cacheable = cacheable and 4 * count * layers * self.encoder.width <= MAX_CACHED
        return replace(data, features=self.frozen_features(data)) if cacheable else data

    def least_lrs(self) -> dict[nn.Parameter, float]:
        return {} if self.mix is None else {self.mix.scores: MIX_LR}

    @property
    def needs_all_embeddings(self) -> bool:
        """Whether training needs more embeddings than those of the words in the examples, or trains none."""
        return self.frozen

    def restrict_embeddings(self, data: EncodedExamples, *, restrict: bool = True) -> RestrictedEmbeddings:
        """While training, embedding tables with only the words of this data."""
        return RestrictedEmbeddings(self.encoder, data, restrict=restrict and not self.needs_all_embeddings)

    def epoch_size(self, data: EncodedExamples) -> int:
        return len(data)

    def batch(self, data: EncodedExamples, rng: CounterRng, examples: range) -> TaskBatch:
        assert data.targets is not None, "examples must be encoded with labels for training"
        index, members = data.expand_groups(data.step_indices(rng, examples))
        inputs = self._inputs(data, index) if data.features is None else None
        selection, numbers = data.select_tokens(index, inputs)
        first_texts = index if members is None else index[members[:, 0].numpy()]
        return TaskBatch(
            inputs=inputs,
            targets=data.targets[data.example_indices[first_texts] if selection is None else numbers],
            weights=torch.from_numpy(data.weights[first_texts]),
            features=None if data.features is None else data.features[numbers],
            selection=selection,
            group_members=members,
        )

    def counts(self, batch: TaskBatch) -> dict[str, Tensor]:
        return {"loss": batch.weights.sum(), "examples": batch.weights.sum()}

    def forward(self, batch: TaskBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        return {"loss": self.loss(batch, self._head_inputs(batch.inputs, batch.selection, batch.features))}, state

    def loss(self, batch: TaskBatch, features: Tensor) -> Tensor:
        """Weighted sum of the losses of a batch."""
        logits = self._head_output(features, batch.selection).float()
        if batch.group_members is not None:
            logits = self.combine_groups(logits, batch.group_members)
        # Not a dot product: autocast would compute that in bf16.
        return (self.example_losses(logits, batch.targets, batch.selection) * batch.weights).sum()

    def combine_groups(self, logits: Tensor, members: Tensor) -> Tensor:
        """[groups, ...]: logits of each group from those of its sequences (`TaskBatch.group_members`)."""
        raise NotImplementedError

    def predict_all_logits(self, data: EncodedExamples, batch: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Indices of some sequences, or selected tokens, with their logits, batch by batch."""
        return ((numbers, logits.cpu()) for numbers, logits in self._infer(data, batch, self._head_output))

    def batch_logits(
        self, inputs: TokenBatch, selection: TokenSelection | None = None, members: Tensor | None = None
    ) -> Tensor:
        """[sequences or groups, ...]: logits of one batch, with gradients; `members` as in `TaskBatch`."""
        logits = self._head_output(self._head_inputs(inputs, selection, None), selection).float()
        return logits if members is None else self.combine_groups(logits, members)

    def _head_output(self, features: Tensor, selection: TokenSelection | None) -> Tensor:
        if self.mix is not None and self._mixes_features(selection):
            features = self.mix(features)
        return self.predict_logits(features, selection)

    def _mixes_features(self, selection: TokenSelection | None) -> bool:
        """Whether features of all layers are mixed by the head; a network over a whole text reads mixed layers."""
        return self.mix is not None and (self.network is None or selection is not None)

    def _inputs(self, data: EncodedExamples, index: np.ndarray) -> TokenBatch:
        """Packed on a GPU, which then computes no padding; padded otherwise, and for a network over whole texts."""
        on_gpu = next(self.encoder.parameters()).is_cuda
        over_texts = self.network is not None and data.selected is None
        packed = on_gpu and self.encoder.accepts_packed and not over_texts
        return data.packed_batch(index) if packed else data.padded_batch(index)

    def _head_inputs(
        self, inputs: TokenBatch | None, selection: TokenSelection | None, features: Tensor | None
    ) -> Tensor:
        """Features that the head reads; with a mix [batch, ..., layers, width] those of all layers."""
        if features is not None:
            return features
        assert inputs is not None
        if not self._mixes_features(selection):
            return self.select_features(inputs, selection)
        layers = self.encoder(inputs, all_layers=True).layers
        found = [self.head_features(EncoderOutput(top=layer), inputs, selection) for layer in layers]
        return torch.stack(found, -2)

    def _infer(
        self, data: EncodedExamples, batch_size: int, read: Callable[[Tensor, TokenSelection | None], Tensor]
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """`read(features, selection)` of all sequences, with the indices of sequences or selected tokens."""
        device = next(self.parameters()).device

        def infer(index: np.ndarray) -> tuple[np.ndarray, Tensor]:
            inputs = self._inputs(data, index)
            selection, numbers = data.select_tokens(index, inputs)
            features = None if data.features is None else data.features[numbers].to(device)
            inputs, selection = inputs.to(device), selection and selection.to(device)
            found = read(self._head_inputs(inputs, selection, features), selection).float()
            return (index, found) if selection is None else (numbers[numbers >= 0], found[selection.mask])

        most = MAX_PADDED_CPU if device.type == "cpu" else MAX_PADDED
        batches = batched_inference(
            self, data.lengths, infer, batch_size=batch_size, max_tokens=most, precision=self.precision
        )
        return (result for _, result in batches)

    def frozen_features(self, data: EncodedExamples) -> Tensor:
        """[sequences or selected, (layers,) width]: the head's inputs, cached or computed, on the GPU if they fit."""
        if data.features is not None:
            return data.features
        features = torch.empty(0)
        count = len(data.example_indices) if data.selected is None else len(data.selected)
        batch_size = 512 if next(self.parameters()).is_cuda else 64  # GPUs wait for launches, CPUs for their cache
        for index, found in self._infer(data, batch_size, lambda features, selection: features):
            if not len(features):
                shape = count, *found.shape[1:]
                free = torch.cuda.mem_get_info(found.device)[0] if found.is_cuda else 0
                fits = 4 * math.prod(shape) < MAX_DATA_SHARE * free
                features = torch.empty(shape, device=found.device if fits else "cpu")
            features[torch.from_numpy(index).to(features.device)] = found.to(features.device)
        return features
