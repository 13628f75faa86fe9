"""What every task shares: examples become rows of ids once, batches hold rows of one length, long texts get windows."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from keel.config import Validated
from keel.data.collation import EncodedExamples, TaskBatch, TokenSelection
from keel.data.examples import DEFAULT_COLUMNS, Columns, Example, Examples, Labels, read_examples
from keel.data.input_windows import FlatTokens, PackedInputs, build_packed_inputs
from keel.data.predictions import Predictions
from keel.data.token_batch import TokenBatch, distinct_ids
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note
from keel.metrics.scores import Scores
from keel.nn.encoder import Encoder, EncoderOutput
from keel.nn.pooling import Pool
from keel.nn.scalar_mix import ScalarMix
from keel.nn.task_network import CharacterEncoderKind, HeadNetwork, HeadNetworkKind
from keel.systems.static_vectors import WordSystem
from keel.systems.system import System
from keel.training.batch_loading import ROOM
from keel.training.counter_rng import CounterRng
from keel.training.objective import Objective, State
from keel.training.plan import Precision, Train
from keel.training.step import autocast


@dataclass(frozen=True, kw_only=True)
class NoDecodingOptions:
    """How answers are looked for, where there is one way alone."""


@dataclass(frozen=True, kw_only=True)
class HeadSettings(Validated):
    """What stands on the encoder, beside the last linear layer."""

    network: HeadNetworkKind = "none"
    """Between encoder and head: filters (cnn) or layers that read in both directions."""
    network_width: int = 200
    """Of each direction, or how many filters there are of each of three widths."""
    network_layers: int = 1
    """Of the network."""
    network_dropout: float = 0.5
    """On what goes into the network, between its layers and on what comes out."""
    characters: CharacterEncoderKind = "none"
    """What reads how each word is spelled, so that words have more than their vectors."""
    crf: bool = False
    """Judge the tags of a sentence as a chain, by which may follow which."""
    pool: Pool = "default"
    """What a text's vector is made from: its tokens' mean, max, the first, the last, or concat: last, max and mean."""
    mix: bool = False
    """Read all layers of the encoder in a mix that is learned, and not the top one alone."""
    orders: Literal["default", "given", "both"] = "default"
    """Of a pair: read it as it stands, or both ways round, the two summaries added; own is the system's way."""
    lm_loss: float = 0.0
    """Weight of a second loss, on foretelling each next token of the same rows (GPT-1: 0.5)."""

    NETWORK = ("network", "network_width", "network_layers", "network_dropout")

    def __post_init__(self) -> None:
        if min(self.network_width, self.network_layers) < 1 or not 0 <= self.network_dropout < 1:
            raise UsageError("network_width and network_layers must be 1 or more, network_dropout from 0 to below 1")
        if not 0 <= self.lm_loss < float("inf"):
            raise UsageError(f"lm_loss is the weight of a loss, 0 or more, not {self.lm_loss}: GPT-1 has 0.5")

    def build_network(self, encoder: Encoder) -> HeadNetwork | None:
        """The network that it puts on an encoder, if any."""
        if self.network == "none" and self.characters == "none":
            return None
        if encoder.sparse or getattr(encoder, "bags", False):
            what = "is for vectors of words in their order, and this model has none"
            raise UsageError(f"--network {what}: take a word2vec, a glove, a fasttext learned from text or a bert")
        return HeadNetwork(
            encoder.width,
            kind=self.network,
            width=self.network_width,
            layers=self.network_layers,
            dropout=self.network_dropout,
            characters=self.characters,
        )

    def non_default(self) -> dict[str, Any]:
        """What is not as it would be without asking."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}


class Task(Objective):
    """An objective with labels: an encoder, a head, and the way from examples to predictions and scores.

    With `frozen` the encoder's blocks stay as they are and run once: what is prepared holds what the task picks of
    their output. Only what `respond` uses learns: the head and, of the encoder, `head_parameters`.
    """

    name: ClassVar[str]
    pair: ClassVar[bool] = False
    """Whether an example is two texts."""
    head_fields: ClassVar[tuple[str, ...]] = ("mix",)
    """The fields of `Head` that it knows."""
    decoding: Any = NoDecodingOptions()
    """How answers are looked for: settings that whoever asks may change."""
    sequences_per_window: int = 1
    """Rows that one answer is made from, where a window has several."""

    def __init__(
        self,
        system: System,
        encoder: Encoder,
        tokenizer: Tokenizer,
        labels: Labels,
        *,
        frozen: bool = False,
        **chosen: Any,
    ):
        super().__init__()
        self.system, self.encoder, self.tokenizer, self.labels = system, encoder, tokenizer, labels
        self.frozen = frozen
        self.head = HeadSettings(**chosen)
        self.network = self.head.build_network(encoder)
        self.width = self.network.width if self.network else encoder.width
        """Of the vectors that the last linear layer reads."""
        if self.head.mix and encoder.layer_count < 2:
            raise UsageError(f"{system.name} has one layer alone, and nothing to mix: leave out --mix")
        self.mix = ScalarMix(encoder.layer_count) if self.head.mix else None
        self.precision: Precision = "auto"
        """Of its answers, as of `Train`: bf16 on a GPU that has it, unless told otherwise."""
        if frozen:
            encoder.requires_grad_(False)
            for parameter in self.head_parameters():
                parameter.requires_grad_(True)

    @classmethod
    def read_examples(cls, source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
        """The examples of a file, a list or a DataFrame, in the form that this task learns from."""
        return read_examples(source, pair=cls.pair, columns=columns, on_event=on_event)

    @classmethod
    def label_schema(cls, examples: Examples) -> Labels:
        """What a model can learn from these examples; those that teach nothing are refused."""
        return examples.labels

    @classmethod
    def check_scorable(cls, examples: Examples, labels: Labels) -> None:
        """Refuse examples on which a model that has learned these labels cannot be scored."""
        labels.targets(examples)

    @classmethod
    def train_tokenizers(
        cls,
        system: System,
        examples: Examples,
        learn: Callable[[list[str], str], Tokenizer],
        *,
        separate: bool,
        on_event: OnEvent = ignore,
    ) -> tuple[Tokenizer, Tokenizer | None]:
        """The pieces of a new model, and if they are others those that it writes, each learned from texts by a kind
        unless told; a kind that the text decides is said."""
        if separate:
            raise UsageError(f"--separate is for --task seq2seq, which reads and writes, not for {cls.name}")
        choices = [choice for each in examples.choices for choice in each]
        return learn(examples.texts + (examples.seconds or []) + choices, system.label_tokenizer), None

    @classmethod
    def finetuning_defaults(cls, system: System, frozen: bool, *, network: bool = False) -> Train:
        """How a system learns this task, with or without a network on it, unless told otherwise."""
        if network and (frozen or isinstance(system, WordSystem)):  # the network is what learns
            return Train(epochs=15, batch=16, lr=3e-3, warmup=0.02)
        return system.finetuning_defaults(frozen)

    def load_head_from(self, other: "Task") -> None:
        """Start from what another task of this kind has learned, beside its encoder."""

    @property
    def settings(self) -> dict[str, Any]:
        """What it takes, beside encoder, tokenizer and labels, to make such a task again."""
        return self.head.non_default()

    def train(self, mode: bool = True) -> Self:
        """A frozen encoder gives in training what it gives ever after."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def with_decoding(self, search: Any) -> Self:
        """This task, weights and all, with another way to look for answers."""
        if search == self.decoding:
            return self
        other = copy(self)
        other.decoding = search
        return other

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Nothing is dropped out meanwhile."""
        was_training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(was_training)

    def make_example(self, item: Any, number: int) -> Example:
        """What somebody asks about, without a label."""
        match item:
            case str() if not self.pair:
                return Example(item, None, None, f"text {number + 1}")
            case [str(first), str(second)] if self.pair:
                return Example(first, second, None, f"pair {number + 1}")
        wanted = "a pair (first text, second text)" if self.pair else "a text"
        raise UsageError(f"item {number + 1} is {item!r}, but this model was made for {wanted}: mend or drop it")

    def is_single_input(self, item: Any) -> bool:
        """Whether this is one thing to ask about, not many."""
        return isinstance(item, str) or (self.pair and isinstance(item, tuple))

    def select_features(self, rows: TokenBatch, asked: TokenSelection | None = None) -> Tensor:
        """[batch, ..., width]: what the head reads of the encoder; of a frozen encoder it is computed once."""
        return self.features_from_output(self.encoder(rows), rows, asked)

    def mixed_layers(self, rows: TokenBatch) -> Tensor:
        """[batch, time, width]: what the encoder gives, or the mix of all its layers if there is one."""
        if self.mix is None:
            return self.encoder(rows).top
        return self.mix(torch.stack(self.encoder(rows, all_layers=True).layers, -2))

    def features_from_output(
        self, output: EncoderOutput, rows: TokenBatch, asked: TokenSelection | None = None
    ) -> Tensor:
        """[batch, ..., width]: what the head reads of an output's top."""
        raise NotImplementedError

    def predict_logits(self, picked: Tensor, asked: TokenSelection | None = None) -> Tensor:
        """[batch, ...]: the head, what it says about each row, or each token asked about, by what was picked for it."""
        raise NotImplementedError

    def head_parameters(self) -> list[nn.Parameter]:
        """The encoder's own weights that `respond` uses: they learn though the encoder is frozen."""
        return []

    def example_losses(self, response: Tensor, targets: Tensor, asked: TokenSelection | None = None) -> Tensor:
        """[batch]: how wrong each response is."""
        raise NotImplementedError

    def predict(self, data: Examples | EncodedExamples, *, batch: int = 64, on_event: OnEvent = ignore) -> Predictions:
        """An answer for each example."""
        raise NotImplementedError

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        """How well these predictions meet the examples' own labels."""
        raise NotImplementedError

    def encode_examples(
        self, examples: Examples, *, batch_size: int = 32, labelled: bool = True, on_event: OnEvent = ignore
    ) -> EncodedExamples:
        """Examples as rows of ids, tokenized once, with targets if `labelled`; an update has `batch_size` rows."""
        targets = self.labels.targets(examples) if labelled else None
        spell = self.system.uses_subwords
        firsts = FlatTokens(*self.tokenizer.encode_flat(examples.texts, oov_ids=spell))
        seconds = None
        if self.pair:
            others = examples.seconds or [""] * len(examples)
            seconds = FlatTokens(*self.tokenizer.encode_flat(others, oov_ids=spell))
        room = self.system.max_length - len(self.system.build_inputs(self.tokenizer, [], [] if self.pair else None).ids)
        rows = self.build_packed_inputs(firsts, seconds, room)
        counts = rows.window_counts // self.sequences_per_window
        if long := int((counts > 1).sum()):
            what = f"{long} of {len(examples)} examples are longer than {room} tokens and are read in windows"
            note(on_event, f"{examples.source}: {what}, {counts[counts > 1].sum()} in all, whose answers are averaged")
        return self._laid_out(examples, rows, targets=targets, batch_size=batch_size)

    def build_packed_inputs(self, firsts: FlatTokens, seconds: FlatTokens | None, room: int) -> PackedInputs:
        """The texts as rows of the system's frame; those longer than `room` have several."""
        return build_packed_inputs(self.system, self.tokenizer, firsts, seconds, room)

    def _laid_out(self, examples: Examples, rows: PackedInputs, **more: Any) -> EncodedExamples:
        """The rows of these examples, and what a frozen encoder makes of them."""
        ids, segments, starts, counts = rows
        spelling = None
        if self.system.uses_subwords:
            ids, starts, spelling = self.system.finetuning_policy.subword_inputs(ids, starts, self.tokenizer)
        shares = np.repeat(self.sequences_per_window / counts, counts).astype(np.float32)
        data = EncodedExamples(
            examples=examples,
            ids=ids,
            segments=segments if self.pair and segments.any() and len(segments) == len(ids) else None,
            starts=starts,
            example_indices=np.repeat(np.arange(len(examples)), counts),
            subword_units=spelling,
            **{
                "weights": shares,
                "group_starts": None
                if self.sequences_per_window == 1
                else np.arange(0, len(starts), self.sequences_per_window),
                **more,
            },
        )
        # What a network makes of a whole text changes while it learns; of words it reads the same vectors every time.
        keeps = self.frozen and not self.encoder.sparse and (self.network is None or data.selected is not None)
        keeps = keeps and (data.selected is None or len(data.selected) > 0)
        return replace(data, features=self._features(data)) if keeps else data

    @contextmanager
    def restrict_embeddings(self, data: EncodedExamples) -> Iterator[EncodedExamples]:
        """While it learns from this data only the words in it have vectors: others would cost time and stay unmoved."""
        words = getattr(self.encoder, "words", None)
        if self.frozen or not isinstance(words, nn.Embedding):
            yield data
            return
        if data.subword_units is None:
            used, ids = distinct_ids(data.ids)
            narrow = replace(data, ids=ids)
            met = {"words": torch.from_numpy(used).long()}
        else:
            met, spelling = self.encoder.used_embeddings(data.subword_units)
            narrow = replace(data, subword_units=spelling)
        whole = {
            name: (table, met[name].to(table.weight.device))
            for name, table in self.encoder.named_children()
            if name in met and isinstance(table, nn.Embedding)
        }
        for name, (table, used) in whole.items():
            setattr(self.encoder, name, nn.Embedding.from_pretrained(table.weight.detach()[used], freeze=False))
        try:
            yield narrow
        finally:
            for name, (table, used) in whole.items():
                with torch.no_grad():
                    table.weight[used] = getattr(self.encoder, name).weight
                setattr(self.encoder, name, table)

    def blocks(self) -> list[nn.Module]:
        return self.encoder.blocks()

    def input_parameters(self) -> list[nn.Parameter]:
        return self.encoder.input_parameters()

    def epoch_size(self, data: EncodedExamples) -> int:
        return len(data)

    def batch(self, data: EncodedExamples, rng: CounterRng, examples: range) -> TaskBatch:
        assert data.targets is not None, "to learn, examples are prepared with their labels"
        index, members = data.expand_groups(data.step_indices(rng, examples))
        chosen = self._rows(data, index) if data.features is None else None  # nothing would read them
        asked, numbers = data.select_tokens(index, chosen)
        firsts = index if members is None else index[members[:, 0].numpy()]
        return TaskBatch(
            inputs=chosen,
            targets=data.targets[data.example_indices[firsts] if asked is None else numbers],
            weights=torch.from_numpy(data.weights[firsts]),
            features=None if data.features is None else data.features[numbers],
            selection=asked,
            group_members=members,
        )

    def counts(self, batch: TaskBatch) -> dict[str, Tensor]:
        return {"loss": batch.weights.sum(), "examples": batch.weights.sum()}

    def forward(self, batch: TaskBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        return {"loss": self.loss(batch, self._picked(batch.inputs, batch.selection, batch.features))}, state

    def loss(self, batch: TaskBatch, picked: Tensor) -> Tensor:
        """The sum of a batch's losses, by what was picked of each row."""
        response = self._respond(picked, batch.selection).float()
        if batch.group_members is not None:
            response = self.combine_groups(response, batch.group_members)
        # Not a dot product: autocast would take that in bf16.
        return (self.example_losses(response, batch.targets, batch.selection) * batch.weights).sum()

    def combine_groups(self, response: Tensor, members: Tensor) -> Tensor:
        """[groups, ...]: one response from those to all rows of a group, by `TaskBatch.members`."""
        raise NotImplementedError

    def predict_all_logits(self, data: EncodedExamples, batch: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        """The numbers of some rows, or of tokens asked about, and the responses to them; all by and by."""
        return ((numbers, found.cpu()) for numbers, found in self._each(data, batch, self._respond))

    def _respond(self, picked: Tensor, asked: TokenSelection | None) -> Tensor:
        return self.predict_logits(self.mix(picked) if self.mix is not None and self._apart(asked) else picked, asked)

    def _apart(self, asked: TokenSelection | None) -> bool:
        """Whether what is picked is so of each layer, and mixed later; a network over a whole text reads the mix."""
        return self.mix is not None and (self.network is None or asked is not None)

    def _rows(self, data: EncodedExamples, index: np.ndarray) -> TokenBatch:
        """Padded for a CPU, which sorts by length; packed for a GPU, which then computes on no padding at all."""
        on_gpu = next(self.encoder.parameters()).is_cuda
        apart = self.network is not None and data.selected is None  # a network reads rows side by side
        return (
            data.packed_batch(index)
            if on_gpu and self.encoder.accepts_packed and not apart
            else data.padded_batch(index)
        )

    def _picked(self, rows: TokenBatch | None, asked: TokenSelection | None, features: Tensor | None) -> Tensor:
        """What the head reads, with a mix [batch, ..., layers, width]: of each layer."""
        if features is not None:
            return features
        assert rows is not None
        if not self._apart(asked):
            return self.select_features(rows, asked)
        layers = self.encoder(rows, all_layers=True).layers
        return torch.stack([self.features_from_output(EncoderOutput(top=layer), rows, asked) for layer in layers], -2)

    def _each(
        self, data: EncodedExamples, batch: int, read: Callable[[Tensor, TokenSelection | None], Tensor]
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        device = next(self.parameters()).device
        # The longest first: should memory not suffice, it shows at once.
        order = np.argsort(-data.lengths, kind="stable")
        with self.eval_mode():
            for start in range(0, len(order), batch):
                index = order[start : start + batch]
                rows = self._rows(data, index)
                asked, numbers = data.select_tokens(index, rows)
                features = None if data.features is None else data.features[numbers].to(device)
                rows, asked = rows.to(device), asked and asked.to(device)
                with torch.inference_mode(), autocast(self.precision, device):
                    found = read(self._picked(rows, asked, features), asked).float()
                yield (index, found) if asked is None else (numbers[numbers >= 0], found[asked.mask])

    def _features(self, data: EncodedExamples) -> Tensor:
        """[rows or asked, width]: what is picked of each; with a mix [rows or asked, layers, width]. It stays on a GPU
        that has much more room, so that no step waits for it."""
        features = torch.empty(0)
        count = len(data.example_indices) if data.selected is None else len(data.selected)
        batch = 512 if next(self.parameters()).is_cuda else 64  # a GPU waits for launches, a CPU for its cache
        for index, picked in self._each(data, batch, lambda picked, asked: picked):
            if not len(features):
                shape = count, *picked.shape[1:]
                fits = picked.is_cuda and 4 * math.prod(shape) < ROOM * torch.cuda.mem_get_info(picked.device)[0]
                features = torch.empty(shape, device=picked.device if fits else "cpu")
            features[torch.from_numpy(index).to(features.device)] = picked.to(features.device)
        return features
