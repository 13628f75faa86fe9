"""A text to another text: a translation, a summary, the second line of a couplet.

An encoder reads the source; a decoder foretells each piece of the target from those before it, all of a target at once
while it learns ("teacher forcing"), piece by piece when it writes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from keel.data.collation import EncodedExamples, TaskBatch, pad_sequences
from keel.data.examples import DEFAULT_COLUMNS, Columns, Examples, Labels
from keel.data.input_windows import FlatTokens, build_packed_inputs
from keel.data.parallel_text import read_aligned
from keel.data.predictions import GeneratedPredictions, GeneratedText, Predictions
from keel.data.sentence_splitting import detect_language
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.generation.beam_search import BeamSearch, Hypothesis, SearchInterrupted, beam_search
from keel.generation.decoding_trace import DecodingTrace
from keel.generation.thread_pool import run_in_threads
from keel.kernels.label_smoothing import smoothed_cross_entropy
from keel.metrics.scores import Scores
from keel.metrics.translation_scores import sacrebleu_metrics, score_texts
from keel.nn.encoder import Decoder, DecodingState, Encoder, Recorder
from keel.systems.system import EncoderDecoderSystem, System
from keel.tasks.task import Task
from keel.training.counter_rng import CounterRng
from keel.training.objective import State, Tensors
from keel.training.step import autocast

GRID = 8
"""On a GPU rows are padded to a multiple of so many tokens: few shapes, each of them one program."""
TEXTS = {"cpu": 64, "cuda": 512}
"""That are written at once: a GPU waits for launches, a CPU for its cache."""
SCORED = 2**27
"""Scores of words that are computed at once, padding counted."""
LONGER = 20
"""A text may have twice as many tokens as its source, and as many more as this or as any that was learned from."""


@dataclass(frozen=True, kw_only=True)
class SequenceToSequenceBatch(TaskBatch):
    """What is read, and what is to be written: `targets` are [batch, time] its pieces, then the closing mark."""

    decoder_ids: Tensor  # [batch, time]: the piece before each target, first the opening mark
    target_lengths: Tensor  # [batch] of the targets with their mark


class SequenceToSequenceGenerator:
    """What decoding asks of a task about to write from some texts."""

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
    """-log p(target | source), summed over the target's pieces; labels smoothed as the system has it."""

    name: ClassVar[str] = "seq2seq"
    head_fields: ClassVar[tuple[str, ...]] = ()
    system: EncoderDecoderSystem
    decoding: BeamSearch = BeamSearch()

    def __init__(
        self,
        system: System,
        encoder: Encoder,
        tokenizer: Tokenizer,
        labels: Labels,
        *,
        extra_length: int = LONGER,
        **settings: Any,
    ):
        if settings.get("frozen"):
            raise UsageError("to rewrite, encoder and decoder learn together: leave out --freeze")
        if isinstance(system, EncoderDecoderSystem):  # others have no decoder, and refuse below
            system = replace(system, shared_vocabulary=labels.tokenizer is None)
        super().__init__(system, encoder, tokenizer, labels, **settings)
        self.target_tokenizer = labels.tokenizer or tokenizer
        self.decoder = system.build_decoder(encoder, len(self.target_tokenizer))
        self.extra_length = extra_length
        """By how many tokens a target that it learned from is at most longer than twice its source."""

    @classmethod
    def read_examples(cls, source: Any, columns: Columns = DEFAULT_COLUMNS, on_event: OnEvent = ignore) -> Examples:
        return read_aligned(source, columns, on_event)

    @classmethod
    def label_schema(cls, examples: Examples) -> Labels:
        _with_targets(examples)
        if len(examples) < 2:
            raise KeelError(f"there is one pair in {examples.source}: to learn how texts are rewritten takes many")
        return Labels(kind="text")

    @classmethod
    def check_scorable(cls, examples: Examples, labels: Labels) -> None:
        _with_targets(examples)
        sacrebleu_metrics()

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
        # Whatever is written must come out as it was, capitals and all; byte pairs can spell anything. But of Chinese
        # they make pieces of whole clauses, which come too seldom to be learned from.
        read, written = (detect_language("\n".join(texts)) == "zh" for texts in (examples.texts, examples.values))
        if not separate:
            read = written = read and written
        if read or written:
            what = "texts look" if read and written else "sources look" if read else "targets look"
            note(on_event, f"the {what} like Chinese: characters are learned (to change that: --tokenizer bpe|words)")
        kinds = {True: "characters", False: "bpe"}
        if separate:
            return learn(examples.texts, kinds[read]), learn(examples.values, kinds[written])
        return learn(examples.texts + examples.values, kinds[read]), None

    def load_head_from(self, other: Task) -> None:
        assert isinstance(other, SequenceToSequence)
        self.decoder.load_state_dict(other.decoder.state_dict())
        self.extra_length = max(self.extra_length, other.extra_length)

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | ({} if self.extra_length == LONGER else {"extra_length": self.extra_length})

    @contextmanager
    def restrict_embeddings(self, data: EncodedExamples) -> Iterator[EncodedExamples]:
        assert data.target_starts is not None
        self.extra_length = max(self.extra_length, int((np.diff(data.target_starts) - 2 * data.lengths).max()))
        yield data  # what is written may be any word

    def blocks(self) -> list[nn.Module]:
        return [*self.encoder.blocks(), *self.decoder.blocks()]

    def encode_examples(
        self, examples: Examples, *, batch_size: int = 32, labelled: bool = True, on_event: OnEvent = ignore
    ) -> EncodedExamples:
        """Sources as rows of ids and, if `labelled`, targets with their closing mark; pairs too long for the model are
        left out, sources without a target are cut, and both is said."""
        room = self.system.max_length - len(self.system.build_inputs(self.tokenizer, []).ids)
        sources = FlatTokens(*self.tokenizer.encode_flat(examples.texts))
        self._tell_unknown(self.tokenizer, sources, examples.texts, examples, on_event)
        written: dict[str, np.ndarray] = {}
        long = sources.lengths > room
        if labelled:
            _with_targets(examples)
            targets = FlatTokens(*self.target_tokenizer.encode_flat(examples.values))
            self._tell_unknown(self.target_tokenizer, targets, examples.values, examples, on_event)
            long = self._too_long(sources, targets)
            if long.any():
                what = f"{long.sum():,} of {len(examples):,} pairs, such as {examples.locations[int(long.argmax())]}"
                note(on_event, f"{what}, have a text of more than {room} tokens: they are left out")
                examples = examples.take(np.flatnonzero(~long).tolist())
                if not examples:
                    raise KeelError(
                        f"{examples.source}: every pair has a text of more than {room} tokens: shorten them"
                    )
                sources, targets = _those(sources, ~long), _those(targets, ~long)
            ends = np.cumsum(targets.lengths)
            written["target_ids"] = np.insert(targets.ids, ends, self.target_tokenizer.sep_id).astype(np.int32)
            written["target_starts"] = np.append(0, ends + np.arange(1, len(ends) + 1))
        elif long.any():
            first = examples.locations[int(long.argmax())]
            what = f"{long.sum():,} of {len(examples):,} texts, such as {first}, have more than {room} tokens"
            note(on_event, f"{what}: only the first {room} are read; give shorter ones, such as sentences")
            sources = _cut(sources, room)
        rows = build_packed_inputs(self.system, self.tokenizer, sources, None, room)
        return self._laid_out(examples, rows, targets=None, batch_size=batch_size, **written)

    def _too_long(self, sources: FlatTokens, targets: FlatTokens) -> np.ndarray:
        """[pairs] whether the model cannot take one."""
        room = self.system.max_length - len(self.system.build_inputs(self.tokenizer, []).ids)
        return (sources.lengths > room) | (targets.lengths >= self.system.max_length)

    @staticmethod
    def _tell_unknown(
        tokenizer: Tokenizer, flat: FlatTokens, texts: list[str], examples: Examples, on_event: OnEvent
    ) -> None:
        count = int((flat.ids == tokenizer.unknown_id).sum()) if tokenizer.has_special_token("unk") else 0
        if count:
            word = tokenizer.unknown_words(texts)[0]
            what = f"{count:,} of {len(flat.ids):,} pieces, such as {word!r}, are unknown to the model"
            note(on_event, f"{examples.source}: {what} and read as [UNK]; bpe knows every symbol (--tokenizer)")

    def batch(self, data: EncodedExamples, rng: CounterRng, examples: range) -> SequenceToSequenceBatch:
        return self._pairs(data, data.step_indices(rng, examples))

    def _pairs(self, data: EncodedExamples, index: np.ndarray) -> SequenceToSequenceBatch:
        assert data.target_ids is not None, "to learn, examples are prepared with their targets"
        assert data.target_starts is not None
        multiple = grid_of(self)
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
        """Pieces, not texts: a long one has more to say."""
        assert isinstance(batch, SequenceToSequenceBatch)
        pieces = batch.target_lengths.sum().float()
        return {"loss": pieces, "tokens": pieces}

    def forward(self, batch: TaskBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        assert isinstance(batch, SequenceToSequenceBatch)
        r_drop = self.system.r_drop if self.training else 0.0
        if not r_drop:
            return {"loss": self._losses(batch)[0].sum()}, state
        # R-Drop (Liang et al. 2021): 1/2 (CE_1 + CE_2 + r_drop times the mean of KL(1, 2) and KL(2, 1)).
        losses, _, scores = self._losses(
            batch.index_select(torch.arange(len(batch.decoder_ids), device=batch.decoder_ids.device).repeat(2))
        )
        one, other = scores.float().log_softmax(-1).chunk(2)
        apart = ((one.exp() - other.exp()) * (one - other)).sum(-1)
        if scores.is_cuda:
            apart = apart * self._inside(batch).flatten()
        return {"loss": losses.sum() / 2 + r_drop / 4 * apart.sum()}, state

    @staticmethod
    def _inside(batch: SequenceToSequenceBatch) -> Tensor:
        """[batch, time] whether a place belongs to its target."""
        return torch.arange(batch.decoder_ids.shape[1], device=batch.decoder_ids.device) < batch.target_lengths[:, None]

    def _losses(self, batch: SequenceToSequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        """[pieces] the loss of each, to which row it belongs, and the scores [pieces, words] that it comes from; on a
        GPU also of those beyond a target, where it is 0: so shapes are the same in every step."""
        assert batch.inputs is not None
        source = self.decoder.project_source(self.encoder(batch.inputs), batch.inputs)
        vectors, _ = self.decoder(batch.decoder_ids, source)
        inside = self._inside(batch)
        owners = torch.arange(len(inside), device=inside.device)[:, None].expand_as(inside)
        smoothing = self.system.label_smoothing if self.training else 0.0
        if not vectors.is_cuda:
            scores = self.decoder.logits(vectors[inside])
            return smoothed_cross_entropy(scores, batch.targets[inside], smoothing), owners[inside], scores
        scores = self.decoder.logits(vectors.flatten(0, 1))
        losses = smoothed_cross_entropy(scores, batch.targets.flatten(), smoothing)
        return losses * inside.flatten(), owners.flatten(), scores

    def target_losses(self, data: EncodedExamples) -> tuple[np.ndarray, np.ndarray]:
        """[rows] -log p of each target, and of how many pieces."""
        assert data.target_starts is not None
        device = next(self.parameters()).device
        found, lengths = np.zeros(len(data)), np.diff(data.target_starts)
        with self.eval_mode():
            for index in _batches(lengths, TEXTS[device.type], SCORED // len(self.target_tokenizer)):
                batch = self._pairs(data, index).to(device)
                with torch.inference_mode(), autocast(self.precision, device):
                    losses, owners, _ = self._losses(batch)
                    sums = losses.new_zeros(len(index)).index_add_(0, owners, losses)
                found[index] = sums.double().cpu().numpy()
        return found, lengths

    @property
    def inference_batch_size(self) -> int:
        """As many are worth handing in together."""
        return TEXTS[next(self.parameters()).device.type] * self._cores

    @property
    def _cores(self) -> int:
        return torch.get_num_threads() if next(self.parameters()).device.type == "cpu" else 1

    def _share(self, texts: int) -> int:
        """Of so many texts, how many go into a batch: all cores are to have work."""
        return max(1, min(self.inference_batch_size // self._cores, -(-texts // self._cores)))

    def generator(self, rows: TokenBatch) -> SequenceToSequenceGenerator:
        """What writes from these texts, one row for each or several."""
        source = self.decoder.project_source(self.encoder(rows), rows)
        return SequenceToSequenceGenerator(
            self.decoder, source, self.target_tokenizer.cls_id, self.target_tokenizer.sep_id, self.system.max_length
        )

    def predict(
        self, data: Examples | EncodedExamples, *, batch: int = 0, on_event: OnEvent = ignore
    ) -> GeneratedPredictions:
        """For each source the text that it becomes, or the best few. Interrupted, it raises `Stopped` with those that
        it has."""
        if isinstance(data, Examples):
            data = self.encode_examples(data, labelled=False, on_event=on_event)
        found: list[list[GeneratedText]] = [[] for _ in range(len(data))]
        halted = Event()

        def write(index: np.ndarray) -> None:
            best: list[list[Hypothesis]] = []
            try:
                best = self._hypotheses(data, index, halted=halted)
            except SearchInterrupted as stopped:
                best = stopped.found
                raise
            finally:
                for number, hypotheses in zip(index.tolist(), best, strict=False):
                    found[number] = self._texts(hypotheses)

        batches = _batches(data.lengths, batch or self._share(len(data)))
        with self.eval_mode():
            try:
                run_in_threads(write, batches, next(self.parameters()).device, halted)
            except KeyboardInterrupt:
                raise SearchInterrupted(found) from None
        self._tell_cut(data, found, on_event)
        return GeneratedPredictions(self.labels, np.array([texts[0].score for texts in found]), found)

    def predict_traced(
        self, data: EncodedExamples, trace: DecodingTrace, on_event: OnEvent = ignore
    ) -> tuple[list[list[GeneratedText]], list[list[int]]]:
        """The best texts for each source, all searched for at once, and the ids of the best with its end; the trace
        sees how."""
        with self.eval_mode():
            try:
                best = self._hypotheses(data, np.arange(len(data)), trace)
            except SearchInterrupted as stopped:
                raise SearchInterrupted([*map(self._texts, stopped.found)]) from None
        found = [*map(self._texts, best)]
        self._tell_cut(data, found, on_event)
        return found, [first.ids_with_eos for first, *_ in best]

    def _texts(self, hypotheses: list[Hypothesis]) -> list[GeneratedText]:
        return [
            GeneratedText(self.target_tokenizer.decode(each.ids), each.score, each.log_prob, ended=each.finished)
            for each in hypotheses
        ]

    def _tell_cut(self, data: EncodedExamples, found: list[list[GeneratedText]], on_event: OnEvent) -> None:
        cut = [number for number, (best, *_) in enumerate(found) if not best.ended]
        if cut:
            what = f"{len(cut):,} of {len(found):,} texts, such as that for {data.examples.locations[cut[0]]}"
            size = self.max_new_tokens(data.lengths[cut[:1]])[0]
            note(on_event, f"{what}, had not ended after {size} tokens and are cut off: --length-penalty 0 may help")

    def max_new_tokens(self, lengths: np.ndarray) -> list[int]:
        """How many tokens may be written from rows of so many, the closing mark counted."""
        return np.minimum(2 * lengths + self.extra_length, self.system.max_length).tolist()

    def _hypotheses(
        self, data: EncodedExamples, index: np.ndarray, trace: DecodingTrace | None = None, halted: Event | None = None
    ) -> list[list[Hypothesis]]:
        device = next(self.parameters()).device
        rows = data.padded_batch(index, grid_of(self)).to(device)
        banned = {*self.target_tokenizer.special_ids} - {self.target_tokenizer.sep_id}
        prompts: list[list[int]] = [[]] * len(index)
        with torch.inference_mode(), autocast(self.precision, device):
            return beam_search(
                self.generator(rows), prompts, self.decoding, max_new_tokens=self.max_new_tokens(data.lengths[index]),
                banned=banned, trace=trace, cancelled=halted,
            )  # fmt: skip

    def score(self, examples: Examples, predictions: Predictions) -> Scores:
        """BLEU and chrF by sacrebleu, the share that is right to the letter, and -log p of the targets by piece."""
        assert isinstance(predictions, GeneratedPredictions)
        self.check_scorable(examples, self.labels)
        sources, targets = (
            self.tokenizer.encode_flat(examples.texts),
            self.target_tokenizer.encode_flat(examples.values),
        )
        fitting = np.flatnonzero(~self._too_long(FlatTokens(*sources), FlatTokens(*targets))).tolist()
        losses = self.target_losses(self.encode_examples(examples.take(fitting))) if fitting else None
        return score_texts(examples, predictions, losses)


def _with_targets(examples: Examples) -> None:
    if examples.kind != "text":
        remedy = "give two files side by side (train.en train.de), or a table with a column for each"
        raise KeelError(f"{examples.source} has sources without targets: {remedy}")


def _batches(lengths: np.ndarray, texts: int, places: int | None = None) -> Iterator[np.ndarray]:
    """The numbers of all rows of these lengths, those of about one length together, the longest first: at most so many
    texts, and if told so many places, padding counted."""
    order, start = np.argsort(-lengths, kind="stable"), 0
    while start < len(order):
        fits = texts if places is None else max(1, min(texts, places // int(lengths[order[start]])))
        yield order[start : start + fits]
        start += fits


def grid_of(task: SequenceToSequence) -> int:
    """The tokens to a multiple of which rows are padded."""
    return GRID if next(task.parameters()).is_cuda else 1


def _those(flat: FlatTokens, chosen: np.ndarray) -> FlatTokens:
    """Some of the texts alone."""
    return FlatTokens(flat.ids[np.repeat(chosen, flat.lengths)], flat.lengths[chosen])


def _cut(flat: FlatTokens, most: int) -> FlatTokens:
    """Of each text the first pieces, at most so many."""
    places = np.arange(len(flat.ids)) - np.repeat(np.cumsum(flat.lengths) - flat.lengths, flat.lengths)
    return FlatTokens(flat.ids[places < most], np.minimum(flat.lengths, most))
