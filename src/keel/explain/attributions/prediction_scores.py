"""A prediction as a function of the words that the model sees: what attributions are computed from.

An occluded word is replaced by a baseline at the input embeddings; a bag of words, which has none, is counted without
it.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from keel.data.collation import TokenSelection
from keel.data.examples import Example, Examples
from keel.data.input_windows import FlatTokens
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.explain.attributions.prediction_layouts import (
    EXPLAINED_TASKS,
    Layout,
    NamedText,
    PredictionTarget,
    TextWord,
    prediction_layout,
)
from keel.model import Model
from keel.nn.inference_loop import eval_mode
from keel.systems.bert import Bert
from keel.tasks import Task
from keel.tasks.classify import TextClassification

Baseline = Literal["auto", "mask", "pad", "zero"]
MAX_TOKENS_CPU, MAX_TOKENS_GPU = 1 << 11, 1 << 14
"""Tokens of a batch of variants of one input."""
MAX_ELEMENTS = 1 << 27
"""Numbers in the input embeddings of such a batch: one-hot vectors are wide."""


class Scored(NamedTuple):
    """Scores and probabilities [variants] of variants of an input."""

    scores: np.ndarray
    probabilities: np.ndarray


class PredictionScores(Protocol):
    """One prediction, and its score when words are occluded."""

    texts: tuple[NamedText, ...]
    words: list[TextWord]
    target: PredictionTarget
    baseline: str
    """What an occluded word is replaced by."""
    tokens: int
    """Tokens of the input, special tokens included."""

    def occlude(self, occluded: np.ndarray) -> Scored:
        """The scores of variants of the input; `occluded` [variants, words] is True where a word is not seen."""
        ...


class EmbeddedPrediction:
    """A prediction as a function of the input embeddings, which gradients are taken of."""

    def __init__(self, task: Task, layout: Layout, texts: tuple[NamedText, ...], baseline: Baseline):
        self.task, self.texts = task, texts
        self.device = next(task.encoder.parameters()).device
        data, sequences = layout.data, layout.sequences
        batch = data.padded_batch(sequences)
        self._selection, _ = data.select_tokens(sequences, batch)
        groups = np.arange(len(sequences)) if data.group_starts is None else np.arange(len(data.group_starts) - 1)
        _, self._members = data.expand_groups(groups) if data.group_starts is not None else (None, None)
        first = sequences if data.group_starts is None else data.group_starts[:-1]
        self._weights = torch.from_numpy(data.weights[first]).to(self.device)
        self.tokens = int(batch.lengths.sum())
        self._batch = batch.to(self.device)
        used = np.unique(np.concatenate(layout.token_words))
        used = used[used >= 0]
        self.words = [layout.words[number] for number in used.tolist()]
        rows = np.full(tuple(batch.ids.shape), -1)
        for row, owners in zip(rows, layout.token_words, strict=True):
            row[: len(owners)] = np.where(owners >= 0, np.searchsorted(used, owners), -1)
        self.token_words = torch.from_numpy(rows).to(self.device)  # [sequences, time]
        with eval_mode(task), torch.no_grad():
            self.embeddings = task.encoder.embed(self._batch).detach()  # [sequences, time, width]
            self.baseline, self.baseline_embeddings = self._baseline(baseline)
            self.target = layout.make_target(self.logits(self.embeddings[None]))

    def _baseline(self, kind: Baseline) -> tuple[str, Tensor]:
        """The name of the baseline, and the input embeddings [sequences, time, width] of an input without words."""
        system, tokenizer = self.task.system, self.task.tokenizer
        if kind == "auto":  # [MASK] has a position, as words have, and masked language models have learned it
            kind = "mask" if isinstance(system, Bert) and tokenizer.has_special_token("mask") else "zero"
            # Cosines jump at a zero vector, and integrated gradients do not see the jump.
            normalizes = self.task.head.align or self.task.head.normalize
            if kind == "zero" and normalizes and tokenizer.has_special_token("pad"):
                kind = "pad"
        inside = (self.token_words >= 0)[..., None]
        if kind == "zero":
            return "zero vectors", self.embeddings.masked_fill(inside, 0.0)
        if not tokenizer.has_special_token(kind):
            raise UsageError(f"this model has no [{kind.upper()}] token: use --baseline zero")
        number = tokenizer.mask_id if kind == "mask" else tokenizer.pad_id
        if self._batch.subword_units is None:
            ids = self._batch.ids.masked_fill(inside[..., 0], number)
            replaced = self.task.encoder.embed(replace(self._batch, ids=ids))
        else:  # words without positions: one vector for all
            alone = system.with_subword_units(TokenBatch.pad([[number]]), tokenizer).to(self.device)
            replaced = self.task.encoder.embed(alone).expand_as(self.embeddings)
        return tokenizer.token_of(number), torch.where(inside, replaced, self.embeddings)

    def logits(self, embeddings: Tensor) -> Tensor:
        """[variants, ...]: logits of input embeddings [variants, sequences, time, width]; those of the windows of a
        long text are averaged, those of selected tokens are [variants, tokens, outputs]."""
        variants, sequences, time, _ = embeddings.shape
        batch, selection, members = self._batch, self._selection, self._members
        copies = torch.arange(variants, device=self.device)
        inputs = replace(
            batch,
            ids=batch.ids.repeat(variants, 1),
            lengths=batch.lengths.repeat(variants),
            segments=None if batch.segments is None else batch.segments.repeat(variants, 1),
            embeddings=embeddings.flatten(0, 1),
        )
        if selection is not None:
            selection = _repeat(selection.to(self.device), copies, sequences * time)
            return self.task.batch_logits(inputs, selection)
        if members is not None:
            offsets = sequences * copies.repeat_interleave(len(members))[:, None]
            members = members.to(self.device).repeat(variants, 1) + offsets
        found = self.task.batch_logits(inputs, None, members)
        return (found.view(variants, len(self._weights), -1) * self._weights[:, None]).sum(1)

    def chunk(self) -> int:
        """Variants of the input that are computed at once."""
        most = MAX_TOKENS_GPU if self.device.type == "cuda" else MAX_TOKENS_CPU
        return max(1, min(most // max(1, self._batch.ids.numel()), MAX_ELEMENTS // max(1, self.embeddings.numel())))

    @torch.no_grad()
    def occlude(self, occluded: np.ndarray) -> Scored:
        scores, probabilities = [], []
        with eval_mode(self.task):
            for part in torch.from_numpy(occluded).to(self.device).split(self.chunk()):
                hidden = part[:, self.token_words.clamp(min=0)] & (self.token_words >= 0)  # [variants, sequences, time]
                logits = self.logits(torch.where(hidden[..., None], self.baseline_embeddings, self.embeddings))
                scores.append(self.target.score(logits))
                probabilities.append(self.target.probability(logits))
        return Scored(torch.cat(scores).cpu().numpy(), torch.cat(probabilities).cpu().numpy())

    def integrated_gradients(self, steps: int, parts: int = 1) -> np.ndarray:
        """[words] (x - b) . integral over a in [0, 1] of the gradient of the score at b + a (x - b), with input
        embeddings x and baseline b (Sundararajan et al. 2017); summed over subwords.

        By a Gauss-Legendre rule of `steps` points in each of `parts` equal intervals: a score that changes suddenly, as
        softmax and gates do, needs several.
        """
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        shape = -1, 1, 1, 1
        points = ((nodes + 1) / 2 + np.arange(parts)[:, None]).ravel() / parts
        shares = torch.from_numpy(points).to(self.embeddings).view(shape)
        weight = torch.from_numpy(np.tile(weights / 2 / parts, parts)).to(self.embeddings).view(shape)
        difference = self.embeddings - self.baseline_embeddings
        total = torch.zeros_like(difference)
        # cuDNN's recurrent layers have no backward pass in evaluation mode.
        plain: AbstractContextManager[object] = (
            torch.backends.cudnn.flags(enabled=False) if self.device.type == "cuda" else nullcontext()
        )
        with eval_mode(self.task), torch.enable_grad(), plain:
            for share, part in zip(shares.split(self.chunk()), weight.split(self.chunk()), strict=True):
                x = (self.baseline_embeddings + share * difference).requires_grad_()
                (gradient,) = torch.autograd.grad(self.target.score(self.logits(x)).sum(), x)
                total += (gradient * part).sum(0)
        by_token = (total * difference).sum(-1).double()  # [sequences, time]
        inside = self.token_words >= 0
        found = by_token.new_zeros(len(self.words))
        return found.index_add_(0, self.token_words[inside], by_token[inside]).cpu().numpy()


class BagPrediction:
    """A prediction from a bag of words (counts, fastText's classifier): an occluded word is left out of the bag, with
    the n-grams that it is part of."""

    baseline = "left out"

    def __init__(self, task: TextClassification, example: Example, layout: Layout, texts: tuple[NamedText, ...]):
        self.task, self.texts = task, texts
        self._example, self.words = example, layout.words
        self._tokens = task.tokenize_examples(Examples.of([example], None, "the text"))
        self._token_words = layout.token_words[0]
        self.tokens = sum(len(each.ids) for each in self._tokens if each is not None)
        self.target = layout.make_target(self._logits(np.zeros((1, len(self.words)), bool)))

    def _logits(self, occluded: np.ndarray) -> Tensor:
        padded = np.pad(occluded, ((0, 0), (0, 1)))  # tokens of no word, at -1, are always kept
        kept = ~padded[:, self._token_words]  # [variants, tokens of both texts]
        first, second = self._tokens
        count = len(first.ids)
        parts = [
            FlatTokens(np.tile(tokens.ids, len(kept))[seen.ravel()], seen.sum(1))
            for tokens, seen in ((first, kept[:, :count]), (second, kept[:, count:]))
            if tokens is not None
        ]
        task = self.task
        room = task.system.max_text_length(task.tokenizer, pair=task.pair)
        inputs = task.build_packed_inputs(parts[0], parts[1] if parts[1:] else None, room)
        examples = Examples.of([self._example] * len(kept), None, "the text")
        return task.predict_example_logits(task.collate_inputs(examples, inputs, targets=None, batch_size=32))

    def occlude(self, occluded: np.ndarray) -> Scored:
        logits = self._logits(occluded)
        return Scored(self.target.score(logits).numpy(), self.target.probability(logits).numpy())


def score_prediction(
    model: Model,
    text: str,
    second: str | None,
    *,
    label: str = "",
    word: str = "",
    baseline: Baseline = "auto",
    chinese_words: bool = False,
) -> EmbeddedPrediction | BagPrediction:
    """The prediction of a fine-tuned model for a text or pair (for answers: passage and question)."""
    title = model.card.title or "the model"
    task = model.task
    if task is None:
        raise UsageError(f"{title} has no task, so no prediction to explain: fine-tune it first (keel finetune)")
    if task.name not in EXPLAINED_TASKS:
        raise UsageError(f"{title} was fine-tuned for {task.name}: explain needs {', '.join(EXPLAINED_TASKS)}")
    if (second is None) == task.pair:
        wanted = "a passage and a question" if task.name == "answer" else "two texts" if task.pair else "one text"
        raise UsageError(f"{title} was fine-tuned for {task.name}: give {wanted}")
    if word and task.name != "tag":
        raise UsageError(f"--word is for models that tag words, and {title} was fine-tuned for {task.name}: omit it")
    if label and task.name == "answer":
        raise UsageError("--label is for classes and tags, and an answer is a span of the passage: leave it out")
    example = task.make_example((text, second) if task.pair else text, 0)
    given = zip(EXPLAINED_TASKS[task.name], (example.text, example.second or ""), strict=False)
    texts = tuple(NamedText(name, each) for name, each in given)
    layout = prediction_layout(task, example, texts, label=label, word=word, chinese_words=chinese_words)
    if not layout.words:
        raise UsageError("the text has no words: give one with words to explain its prediction")
    if isinstance(task, TextClassification) and task.encoder.bag_of_words:
        if baseline != "auto":
            raise UsageError(f"{task.system.name} counts words, and one that is occluded is left out: omit --baseline")
        return BagPrediction(task, example, layout, texts)
    return EmbeddedPrediction(task, layout, texts, baseline)


def _repeat(selection: TokenSelection, copies: Tensor, size: int) -> TokenSelection:
    """The selected tokens of copies of a batch of `size` tokens, padding included."""
    count = len(copies)
    offsets = size * copies.repeat_interleave(len(selection.positions))[:, None]
    return replace(
        selection,
        positions=selection.positions.repeat(count, 1) + offsets,
        counts=selection.counts.repeat(count),
        character_indices=None if selection.character_indices is None else selection.character_indices.repeat(count, 1),
        roles=None if selection.roles is None else selection.roles.repeat(count, 1),
        word_hashes=None if selection.word_hashes is None else selection.word_hashes.repeat(count, 1),
    )
