"""Sequence-to-sequence: a text to another text, such as a translation or a summary.

An encoder reads the source; a decoder predicts each target token from the previous ones: all at once in training
(teacher forcing), one by one in generation.
"""

from dataclasses import dataclass, replace
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from keel.data.collation import EncodedExamples, TaskBatch
from keel.data.examples import DEFAULT_COLUMNS, Columns, Example, Examples, Labels
from keel.data.input_windows import FlatTokens, build_packed_inputs
from keel.data.label_kinds import TextTarget
from keel.data.language_detection import is_unspaced, language_name
from keel.data.parallel_text import read_aligned, read_sources
from keel.data.predictions import GeneratedPredictions, GeneratedText, Predictions
from keel.data.token_batch import TokenBatch, pad_sequences
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.generation.beam_search import BeamSearch, Hypothesis, SearchInterrupted, beam_search
from keel.generation.decoding_trace import DecodingTrace
from keel.generation.thread_pool import run_in_threads
from keel.kernels.cross_entropy import smoothed_cross_entropy
from keel.metrics.scores import Scores
from keel.metrics.translation_scores import sacrebleu_metrics, score_texts
from keel.nn.encoder import Decoder, DecodingState, Encoder, Recorder
from keel.nn.inference_loop import batched_inference, eval_mode, length_batches
from keel.systems.system import EncoderDecoderSystem, System
from keel.tasks.task import Task, TrainTokenizer
from keel.training.counter_rng import CounterRng
from keel.training.objective import State, Tensors
from keel.training.step import autocast

PADDING_MULTIPLE = 8
"""On a GPU sequences are padded to a multiple of this: fewer shapes, fewer compiled kernels."""
BATCH_SIZES = {"cpu": 64, "cuda": 512}
"""Texts per inference batch: a GPU waits for launches, a CPU for its cache."""
MAX_LOGITS = 2**27
"""Logits that are computed at once, padding included."""
EXTRA_LENGTH = 20
"""A target has at most twice as many tokens as its source plus this, or more if training targets had more."""


@dataclass(frozen=True, kw_only=True)
class SequenceToSequenceBatch(TaskBatch):
    """Sources and targets; `targets` are [batch, time] target ids with the end token."""

    decoder_ids: Tensor  # [batch, time]: the targets shifted right, after the start token
    target_lengths: Tensor  # [batch] with the end token

    @property
    def target_mask(self) -> Tensor:
        """[batch, time]: False for padding of the targets."""
        positions = torch.arange(self.decoder_ids.shape[1], device=self.decoder_ids.device)
        return positions < self.target_lengths[:, None]


class SequenceToSequenceGenerator:
    """Next-token model of the targets of some encoded sources."""

    def __init__(self, decoder: Decoder, source: Tensors, bos_id: int, eos_id: int, max_context: int):
        self.decoder, self.source, self.bos_id, self.eos_id = decoder, source, bos_id, eos_id
        self.max_context = max_context

    def new_state(self, batch_size: int) -> DecodingState:
        return DecodingState(source=self.source, own=self.decoder.new_state(self.source, batch_size))

    def step(self, ids: Tensor, state: State | None, record: Recorder | None = None) -> tuple[Tensor, DecodingState]:
        assert isinstance(state, DecodingState)
        vectors, own = self.decoder(ids.to(self.source.device), state.source, state.own, record=record)
        return self.decoder.logits(vectors[:, -1]), replace(state, own=own)


class SequenceToSequence(Task):
    """-log p(target | source) = -sum_t log p(y_t | y_<t, source), with the system's label smoothing and R-Drop."""

    name = "seq2seq"
    head_fields = ()
    system: EncoderDecoderSystem
    decoding: BeamSearch = BeamSearch()

    def __init__(
        self,
        system: System,
        encoder: Encoder,
        tokenizer: Tokenizer,
        labels: Labels,
        *,
        extra_length: int = EXTRA_LENGTH,
        **settings: Any,
    ):
        if settings.get("frozen"):
            raise UsageError("--task seq2seq trains encoder and decoder together: leave out --freeze")
        if not isinstance(system, EncoderDecoderSystem):
            raise UsageError(system.unsupported_reason(self.name))
        super().__init__(system, encoder, tokenizer, labels, **settings)
        self.target_tokenizer = labels.tokenizer or tokenizer
        self.decoder = system.build_decoder(
            encoder, len(self.target_tokenizer), shared_vocabulary=labels.tokenizer is None
        )
        self.extra_length = extra_length
        """Tokens that a target may have beyond twice the length of its source."""

    @classmethod
    def read_examples(cls, source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
        return read_aligned(source, columns, on_event)

    @classmethod
    def make_examples(cls, source: Any, columns: Columns, on_event: OnEvent | None = None) -> list[Example]:
        sources, locations = read_sources(source, columns, on_event)
        return [Example(text, None, None, location) for text, location in zip(sources, locations, strict=True)]

    @classmethod
    def label_schema(cls, examples: Examples) -> Labels:
        _require_targets(examples)
        if len(examples) < 2:
            raise KeelError(f"{examples.source} has only one pair: give two or more")
        return Labels(kind=TextTarget())

    @classmethod
    def check_scorable(cls, examples: Examples, labels: Labels) -> None:
        _require_targets(examples)
        sacrebleu_metrics()

    @classmethod
    def train_tokenizers(
        cls, system: System, examples: Examples, train: TrainTokenizer, *, separate: bool, on_event: OnEvent = ignore
    ) -> tuple[Tokenizer, Tokenizer | None]:
        # Byte-level BPE can produce any text, case included. In Chinese, though, its tokens are whole clauses, too rare
        # to be learned.
        samples = ["\n".join(texts) for texts in (examples.texts, examples.values)]
        source, target = map(is_unspaced, samples)
        if not separate:
            source = target = source and target
        if source or target:
            what = "texts look" if source and target else "sources look" if source else "targets look"
            name = language_name(samples[0 if source else 1])
            note(on_event, f"the {what} {name}: character tokenizer (to change it: --text.tokenizer bpe|words)")
        kinds = {True: "characters", False: "bpe"}
        if separate:
            return train(examples.texts, kinds[source]), train(examples.values, kinds[target])
        return train(examples.texts + examples.values, kinds[source]), None

    def load_head_from(self, other: Task) -> None:
        assert isinstance(other, SequenceToSequence)
        self.decoder.load_state_dict(other.decoder.state_dict())
        self.extra_length = max(self.extra_length, other.extra_length)

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({} if self.extra_length == EXTRA_LENGTH else {"extra_length": self.extra_length})

    def setup(self, data: EncodedExamples) -> None:
        """Allow targets as long as those of the training data."""
        assert data.target_starts is not None
        self.extra_length = max(self.extra_length, int((np.diff(data.target_starts) - 2 * data.lengths).max()))

    @property
    def needs_all_embeddings(self) -> bool:
        return True  # the decoder may generate any word

    def blocks(self) -> list[nn.Module]:
        return [*self.encoder.blocks(), *self.decoder.blocks()]

    def encode_examples(
        self, examples: Examples, *, batch_size: int = 32, labelled: bool = True, on_event: OnEvent = ignore
    ) -> EncodedExamples:
        """Sources and, if `labelled`, targets with their end token; long pairs are skipped, long sources without a
        target truncated, both with a note."""
        room = self.system.max_text_length(self.tokenizer)
        sources = self.tokenize(examples.texts)
        self._report_unknown(self.tokenizer, sources, examples.texts, examples, on_event)
        target_fields: dict[str, np.ndarray] = {}
        long = sources.lengths > room
        if labelled:
            _require_targets(examples)
            targets = FlatTokens(*self.target_tokenizer.encode_flat(examples.values))
            self._report_unknown(self.target_tokenizer, targets, examples.values, examples, on_event)
            long = self._too_long(sources, targets)
            if long.any():
                what = f"{long.sum():,} of {len(examples):,} pairs, such as {examples.locations[int(long.argmax())]}"
                note(on_event, f"{what}, have a text of more than {room} tokens: skipped")
                examples = examples.take(np.flatnonzero(~long).tolist())
                if not examples:
                    what = f"every pair has a text of more than {room} tokens"
                    raise KeelError(f"{examples.source}: {what}: shorten them")
                sources, targets = sources.take(~long), targets.take(~long)
            ends = np.cumsum(targets.lengths)
            target_fields["target_ids"] = np.insert(targets.ids, ends, self.target_tokenizer.sep_id).astype(np.int32)
            target_fields["target_starts"] = np.append(0, ends + np.arange(1, len(ends) + 1))
        elif long.any():
            first = examples.locations[int(long.argmax())]
            what = f"{long.sum():,} of {len(examples):,} texts, such as {first}, have more than {room} tokens"
            note(on_event, f"{what}: truncated to the first {room}; give shorter texts, such as sentences")
            sources = sources.truncate(room)
        inputs = build_packed_inputs(self.system, self.tokenizer, sources, None, room)
        return self.collate_inputs(examples, inputs, targets=None, batch_size=batch_size, **target_fields)

    def _too_long(self, sources: FlatTokens, targets: FlatTokens) -> np.ndarray:
        """[pairs] whether source or target exceeds the maximum length."""
        room = self.system.max_text_length(self.tokenizer)
        return (sources.lengths > room) | (targets.lengths >= self.system.max_length)

    @staticmethod
    def _report_unknown(
        tokenizer: Tokenizer, flat: FlatTokens, texts: list[str], examples: Examples, on_event: OnEvent
    ) -> None:
        count = int((flat.ids == tokenizer.unknown_id).sum()) if tokenizer.has_special_token("unk") else 0
        if count:
            word = tokenizer.unknown_words(texts)[0]
            what = f"{count:,} of {len(flat.ids):,} tokens, such as {word!r}, are not in the vocabulary"
            note(on_event, f"{examples.source}: {what} and become [UNK]; --text.tokenizer bpe has no unknown tokens")

    def batch(self, data: EncodedExamples, rng: CounterRng, examples: range) -> SequenceToSequenceBatch:
        return self._batch_of(data, data.step_indices(rng, examples))

    def _batch_of(self, data: EncodedExamples, index: np.ndarray) -> SequenceToSequenceBatch:
        assert data.target_ids is not None, "examples must be encoded with targets for training"
        assert data.target_starts is not None
        multiple = self._padding_multiple
        targets = pad_sequences(data.target_ids, data.target_starts, index, multiple)
        return SequenceToSequenceBatch(
            inputs=data.padded_batch(index, multiple),
            decoder_ids=torch.cat([torch.full_like(targets[:, :1], self.target_tokenizer.cls_id), targets[:, :-1]], 1),
            targets=targets,
            target_lengths=torch.from_numpy(np.diff(data.target_starts)[index]),
            weights=torch.from_numpy(data.weights[index]),
            features=None,
        )

    def counts(self, batch: TaskBatch) -> dict[str, Tensor]:
        assert isinstance(batch, SequenceToSequenceBatch)
        tokens = batch.target_lengths.sum().float()
        return {"loss": tokens, "tokens": tokens}

    def forward(self, batch: TaskBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        assert isinstance(batch, SequenceToSequenceBatch)
        r_drop = self.system.r_drop if self.training else 0.0
        if not r_drop:
            return {"loss": self._losses(batch)[0].sum()}, state
        # R-Drop (Liang et al. 2021): 1/2 (CE_1 + CE_2) + r_drop/2 * 1/2 (KL(p_1 || p_2) + KL(p_2 || p_1)).
        twice = torch.arange(len(batch.decoder_ids), device=batch.decoder_ids.device).repeat(2)
        losses, _, scores = self._losses(batch.index_select(twice))
        one, other = scores.float().log_softmax(-1).chunk(2)
        divergence = ((one.exp() - other.exp()) * (one - other)).sum(-1)
        if scores.is_cuda:
            divergence = divergence * batch.target_mask.flatten()
        return {"loss": losses.sum() / 2 + r_drop / 4 * divergence.sum()}, state

    def _losses(self, batch: SequenceToSequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        """[tokens] the loss of each target token, the sequence that it belongs to, and its logits [tokens, vocabulary].

        On a GPU padding is included, with loss 0, so that all steps have the same shapes."""
        assert batch.inputs is not None
        source = self.decoder.project_source(self.encoder(batch.inputs), batch.inputs)
        vectors, _ = self.decoder(batch.decoder_ids, source)
        mask = batch.target_mask
        sequences = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)
        smoothing = self.system.label_smoothing if self.training else 0.0
        if not vectors.is_cuda:
            scores = self.decoder.logits(vectors[mask])
            return smoothed_cross_entropy(scores, batch.targets[mask], smoothing), sequences[mask], scores
        scores = self.decoder.logits(vectors.flatten(0, 1))
        losses = smoothed_cross_entropy(scores, batch.targets.flatten(), smoothing)
        return losses * mask.flatten(), sequences.flatten(), scores

    def target_losses(self, data: EncodedExamples) -> tuple[np.ndarray, np.ndarray]:
        """[sequences] -log p(target | source) and the number of tokens of each target."""
        assert data.target_starts is not None
        device = next(self.parameters()).device
        found, lengths = np.zeros(len(data)), np.diff(data.target_starts)

        def infer(index: np.ndarray) -> Tensor:
            losses, sequences, _ = self._losses(self._batch_of(data, index).to(device))
            return losses.new_zeros(len(index)).index_add_(0, sequences, losses)

        for index, sums in batched_inference(
            self, lengths, infer, batch_size=BATCH_SIZES[device.type],
            max_tokens=MAX_LOGITS // len(self.target_tokenizer), precision=self.precision,
        ):  # fmt: skip
            found[index] = sums.double().cpu().numpy()
        return found, lengths

    @property
    def inference_batch_size(self) -> int:
        """Texts that keep all cores busy."""
        return BATCH_SIZES[next(self.parameters()).device.type] * self._cores

    @property
    def _cores(self) -> int:
        return torch.get_num_threads() if next(self.parameters()).device.type == "cpu" else 1

    @property
    def _padding_multiple(self) -> int:
        return PADDING_MULTIPLE if next(self.parameters()).is_cuda else 1

    def generator(self, inputs: TokenBatch) -> SequenceToSequenceGenerator:
        """Next-token model of the targets of these sources."""
        source = self.decoder.project_source(self.encoder(inputs), inputs)
        target = self.target_tokenizer
        return SequenceToSequenceGenerator(self.decoder, source, target.cls_id, target.sep_id, self.system.max_length)

    def predict(
        self, data: Examples | EncodedExamples, *, batch: int = 0, on_event: OnEvent = ignore
    ) -> GeneratedPredictions:
        """Best targets per source by beam search; an interrupt raises `SearchInterrupted` with those found so far."""
        if isinstance(data, Examples):
            data = self.encode_examples(data, labelled=False, on_event=on_event)
        found: list[list[GeneratedText]] = [[] for _ in range(len(data))]
        halted = Event()

        def generate(index: np.ndarray) -> None:
            best: list[list[Hypothesis]] = []
            try:
                best = self._hypotheses(data, index, halted=halted)
            except SearchInterrupted as stopped:
                best = stopped.found
                raise
            finally:
                for number, hypotheses in zip(index.tolist(), best, strict=False):
                    found[number] = self._texts(hypotheses)

        per_core = min(self.inference_batch_size // self._cores, -(-len(data) // self._cores))
        batches = length_batches(data.lengths, batch or max(1, per_core))
        with eval_mode(self):
            try:
                run_in_threads(generate, batches, next(self.parameters()).device, halted)
            except KeyboardInterrupt:
                raise SearchInterrupted(found) from None
        self._report_truncated(data, found, on_event)
        return GeneratedPredictions(self.labels, np.array([texts[0].score for texts in found]), found)

    def predict_traced(
        self, data: EncodedExamples, trace: DecodingTrace, on_event: OnEvent = ignore
    ) -> tuple[list[list[GeneratedText]], list[list[int]]]:
        """As `predict`, in one batch with a trace of the search; also the ids of each best text with its end token."""
        with eval_mode(self):
            try:
                best = self._hypotheses(data, np.arange(len(data)), trace)
            except SearchInterrupted as stopped:
                raise SearchInterrupted([*map(self._texts, stopped.found)]) from None
        found = [*map(self._texts, best)]
        self._report_truncated(data, found, on_event)
        return found, [first.ids_with_eos for first, *_ in best]

    def _texts(self, hypotheses: list[Hypothesis]) -> list[GeneratedText]:
        return [
            GeneratedText(self.target_tokenizer.decode(each.ids), each.score, each.log_prob, ended=each.finished)
            for each in hypotheses
        ]

    def _report_truncated(self, data: EncodedExamples, found: list[list[GeneratedText]], on_event: OnEvent) -> None:
        truncated = [number for number, (best, *_) in enumerate(found) if not best.ended]
        if truncated:
            first = data.examples.locations[truncated[0]]
            what = f"{len(truncated):,} of {len(found):,} texts, such as that for {first}"
            size = self.max_new_tokens(data.lengths[truncated[:1]])[0]
            note(on_event, f"{what}, have no end token after {size} tokens: truncated; try --length-penalty 0")

    def max_new_tokens(self, lengths: np.ndarray) -> list[int]:
        """Maximum target lengths for sources of these lengths, end token included."""
        return np.minimum(2 * lengths + self.extra_length, self.system.max_length).tolist()

    def _hypotheses(
        self, data: EncodedExamples, index: np.ndarray, trace: DecodingTrace | None = None, halted: Event | None = None
    ) -> list[list[Hypothesis]]:
        device = next(self.parameters()).device
        inputs = data.padded_batch(index, self._padding_multiple).to(device)
        banned = {*self.target_tokenizer.special_ids} - {self.target_tokenizer.sep_id}
        prompts: list[list[int]] = [[]] * len(index)
        with torch.inference_mode(), autocast(self.precision, device):
            return beam_search(
                self.generator(inputs), prompts, self.decoding, max_new_tokens=self.max_new_tokens(data.lengths[index]),
                banned=banned, trace=trace, cancelled=halted,
            )  # fmt: skip

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        """BLEU and chrF by sacrebleu, exact match, and the loss per target token."""
        assert isinstance(predictions, GeneratedPredictions)
        self.check_scorable(examples, self.labels)
        sources = self.tokenize(examples.texts)
        targets = FlatTokens(*self.target_tokenizer.encode_flat(examples.values))
        fitting = np.flatnonzero(~self._too_long(sources, targets)).tolist()
        losses = self.target_losses(self.encode_examples(examples.take(fitting))) if fitting else None
        return score_texts(examples, predictions, losses)


def _require_targets(examples: Examples) -> None:
    if not isinstance(examples.kind, TextTarget):
        remedy = "give two parallel files (train.en train.de), or a table with a column for each"
        raise KeelError(f"{examples.source} has sources without targets: {remedy}")
