"""The score of one prediction as a function of the words that the model sees: what attributions are computed from.

The score is the log-odds log(p / (1 - p)) of a label, of a word's tag, or of the start plus that of the end of an
answer. Of a sigmoid it is the logit, of a softmax the logit minus the log-sum-exp of the others: a logit alone may rise
while its probability falls. An occluded word is replaced by a baseline at the input embeddings; a bag of words, which
has none, is counted without it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from keel.data.collation import EncodedExamples, TokenSelection
from keel.data.examples import Example, Examples
from keel.data.input_windows import FlatTokens
from keel.data.label_kinds import MultiLabel
from keel.data.tag_schemes import OUTSIDE
from keel.data.tagged_sentences import split_words
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.model import Model
from keel.nn.inference_loop import eval_mode
from keel.systems.bert import Bert
from keel.tasks import Task
from keel.tasks.answer import SpanAnswering
from keel.tasks.answer_windows import PASSAGE, QUESTION
from keel.tasks.classify import TextClassification
from keel.tasks.span_search import ScoredSpan, best_spans
from keel.tasks.tag import TokenClassification

Baseline = Literal["auto", "mask", "pad", "zero"]
MAX_TOKENS_CPU, MAX_TOKENS_GPU = 1 << 11, 1 << 14
"""Tokens of a batch of variants of one input."""
MAX_ELEMENTS = 1 << 27
"""Numbers in the input embeddings of such a batch: one-hot vectors are wide."""
PLACEHOLDER = 1 << 30
"""The token at index i of the texts has the placeholder id PLACEHOLDER + i."""
NAMES = {"classify": ("text",), "pair": ("first", "second"), "tag": ("text",), "answer": ("question", "passage")}


class NamedText(NamedTuple):
    """A text of an input, and what it is: text, first, second, question or passage."""

    name: str
    text: str


class TextWord(NamedTuple):
    """A word that the model read: index of its text, and its characters there."""

    text: int
    start: int
    end: int


@dataclass(frozen=True)
class PredictionTarget:
    """What is explained: a number that is computed from the logits of each variant of the input."""

    prediction: str
    """The label, tag, answer or number."""
    meaning: str
    """The score in words."""
    score: Callable[[Tensor], Tensor]
    """[variants] scores of [variants, ...] logits."""
    probability: Callable[[Tensor], Tensor]
    """[variants] the probability of the prediction; for regression the number."""


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


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the words of an example are in the sequences of its input, and how its target is made."""

    data: EncodedExamples
    sequences: np.ndarray  # [sequences] those of `data` that the prediction is made from
    token_words: list[np.ndarray]  # [tokens] of each sequence: the index of the word, -1 for other tokens
    words: list[TextWord]
    make_target: Callable[[Tensor], PredictionTarget]
    """The target, from logits [1, ...] of the whole input."""


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
    if task.name not in NAMES:
        raise UsageError(f"{title} was fine-tuned for {task.name}: explain needs {', '.join(NAMES)}")
    if (second is None) == task.pair:
        wanted = "a passage and a question" if task.name == "answer" else "two texts" if task.pair else "one text"
        raise UsageError(f"{title} was fine-tuned for {task.name}: give {wanted}")
    if word and task.name != "tag":
        raise UsageError(f"--word is for models that tag words, and {title} was fine-tuned for {task.name}: omit it")
    if label and task.name == "answer":
        raise UsageError("--label is for classes and tags, and an answer is a span of the passage: leave it out")
    example = task.make_example((text, second) if task.pair else text, 0)
    given = zip(NAMES[task.name], (example.text, example.second or ""), strict=False)
    texts = tuple(NamedText(name, each) for name, each in given)
    layout = _layout(task, example, texts, label=label, word=word, chinese_words=chinese_words)
    if not layout.words:
        raise UsageError("the text has no words: give one with words to explain its prediction")
    if isinstance(task, TextClassification) and task.encoder.bag_of_words:
        if baseline != "auto":
            raise UsageError(f"{task.system.name} counts words, and one that is occluded is left out: omit --baseline")
        return BagPrediction(task, example, layout, texts)
    return EmbeddedPrediction(task, layout, texts, baseline)


def split_text(
    text: str, offsets: Sequence[tuple[int, int]], *, chinese_words: bool = False
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """The words of a text as (start, end) characters, and [tokens] the word of each token, -1 for whitespace; Chinese
    by characters, or in words by jieba. Words that share a token are one word."""
    spans: list[tuple[int, int]] = []
    for found in split_words(text, chinese_words=chinese_words):
        start = text.index(found, spans[-1][1] if spans else 0)
        spans.append((start, start + len(found)))
    owner = np.full(len(text) + 1, -1)
    for number, (start, end) in enumerate(spans):
        owner[start:end] = number
    joined = np.zeros(len(spans), bool)  # to the word before
    firsts = np.full(len(offsets), -1)
    for token, (start, end) in enumerate(offsets):
        inside = owner[start:end][owner[start:end] >= 0]
        if len(inside):
            firsts[token] = inside[0]
            joined[inside[0] + 1 : inside[-1] + 1] = True
    groups = np.cumsum(~joined) - 1  # [spans]
    words = [(spans[first][0], 0) for first in np.flatnonzero(~joined).tolist()]
    for number, (_, end) in zip(groups.tolist(), spans, strict=True):
        words[number] = words[number][0], end
    return words, np.where(firsts >= 0, groups[firsts] if len(groups) else -1, -1)


def _layout(
    task: Task, example: Example, texts: tuple[NamedText, ...], *, label: str, word: str, chinese_words: bool
) -> Layout:
    examples = Examples.of([example], None, "the text")
    if isinstance(task, TokenClassification):
        return _tag_layout(task, examples, label, word)
    encodings = task.tokenizer.encode_with_offsets([text for _, text in texts], oov_ids=task.system.uses_subwords)
    words: list[TextWord] = []
    token_words: list[np.ndarray] = []  # of each text
    for number, (encoding, (_, text)) in enumerate(zip(encodings, texts, strict=True)):
        spans, owners = split_text(text, encoding.offsets, chinese_words=chinese_words)
        token_words.append(np.where(owners >= 0, owners + len(words), -1))
        words += [TextWord(number, *span) for span in spans]
    if isinstance(task, SpanAnswering):
        return _answer_layout(task, examples, words, token_words)
    assert isinstance(task, TextClassification)
    return _class_layout(task, examples, words, token_words, label)


def _class_layout(
    task: TextClassification, examples: Examples, words: list[TextWord], token_words: list[np.ndarray], label: str
) -> Layout:
    """The input template is built from placeholders instead of token ids: they show where each token is."""
    found = task.tokenize_examples(examples)
    read = [owners[: len(tokens.ids)] for owners, tokens in zip(token_words, found, strict=False) if tokens is not None]
    numbers = (PLACEHOLDER + np.arange(sum(map(len, read)))).astype(np.int32)
    flat = [FlatTokens(ids, np.array([len(ids)])) for ids in np.split(numbers, [len(read[0])][: len(read) - 1])]
    room = task.system.max_text_length(task.tokenizer, pair=task.pair)
    packed = task.build_packed_inputs(flat[0], flat[1] if flat[1:] else None, room)
    owners = np.concatenate(read)

    def make_target(logits: Tensor) -> PredictionTarget:
        return _label_target(task, logits, label)

    if task.encoder.bag_of_words:
        kept, indices = np.unique(owners[owners >= 0], return_inverse=True)
        owners[owners >= 0] = indices
        words, by_sequence = [words[number] for number in kept.tolist()], [owners]
    else:
        sources = packed.ids.astype(np.int64) - PLACEHOLDER
        by_token = np.where(sources >= 0, owners[np.maximum(sources, 0)] if len(owners) else -1, -1)
        by_sequence = np.split(by_token, packed.starts[1:-1])
    data = task.encode_examples(examples, labelled=False)
    return Layout(
        data=data,
        sequences=np.arange(len(data.example_indices)),
        token_words=by_sequence,
        words=words,
        make_target=make_target,
    )


def _label_target(task: TextClassification, logits: Tensor, label: str) -> PredictionTarget:
    names, estimates = task.labels.names, task.label_probabilities(logits.cpu())
    if not names:
        if label:
            raise UsageError("--label is for classes, and this model predicts a number: leave it out")
        number = float(estimates[0])
        return PredictionTarget(f"{number:.4g}", "the predicted number", lambda x: x[:, 0], lambda x: x[:, 0])
    if label and label not in names:
        known = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
        raise UsageError(f"the model has no label {label!r}: choose one of {known}")
    if label:
        chosen = names.index(label)
    elif isinstance(task.labels.kind, MultiLabel):
        chosen = int(estimates[0].argmax())
    else:
        chosen = int(task.labels.kind.decide(estimates, names, task.threshold)[0])
    independent = isinstance(task.labels.kind, MultiLabel) or task.system.finetuning_policy.one_vs_rest
    return PredictionTarget(
        names[chosen],
        f"log-odds of {names[chosen]!r}",
        lambda x: x[:, chosen] if independent else log_odds(x, chosen),
        lambda x: torch.from_numpy(task.label_probabilities(x.cpu())[:, chosen]),
    )


def _tag_layout(task: TokenClassification, examples: Examples, label: str, word: str) -> Layout:
    """The window in which the word is tagged."""
    text, words = examples[0].text, task.split_into_words(examples[0])
    predicted = task.predict(examples)[0]
    tags: tuple[str, ...] = getattr(predicted, "tags", ())
    spans: list[TextWord] = []
    for each in words:
        start = text.index(each, spans[-1].end if spans else 0)
        spans.append(TextWord(0, start, start + len(each)))
    index = _find_word(words, tags, word)
    if label and label not in task.labels.names:
        raise UsageError(f"the model has no tag {label!r}: choose one of {', '.join(task.labels.names[:10])}")
    tag = label or (tags[index] if tags else "")
    subwords = task.subword_ids([words], "the text")
    parts = [subwords[each] for each in words]
    windows = task.word_windows(parts)
    number = next((n for n, (_, tagged) in enumerate(windows) if index in tagged), 0)
    span, tagged = windows[number]
    built = task.system.build_inputs(task.tokenizer, [each for part in parts[span.start : span.stop] for each in part])
    owners = np.full(len(built.ids), -1)
    inside = np.repeat([*span], [len(parts[each]) for each in span]) if len(span) else np.empty(0, int)
    owners[built.first_start : built.first_start + len(inside)] = inside
    row, column = index - tagged.start, task.labels.names.index(tag) if tag else 0

    def make_target(logits: Tensor) -> PredictionTarget:
        kind = "log-odds without the CRF" if task.crf is not None else "log-odds"
        return PredictionTarget(
            tag,
            f"{kind} of {tag!r} for {words[index]!r} (word {index + 1})",
            lambda x: log_odds(x[:, row], column),
            lambda x: x[:, row].softmax(-1)[:, column],
        )

    return Layout(
        data=task.encode_examples(examples, labelled=False),
        sequences=np.array([number]),
        token_words=[owners],
        words=spans,
        make_target=make_target,
    )


def _find_word(words: tuple[str, ...], tags: tuple[str, ...], word: str) -> int:
    """Index of a word, given as itself or by its number; by default the first one with a tag other than O."""
    if not word:
        return next((number for number, tag in enumerate(tags) if tag != OUTSIDE), 0)
    if word in words:
        return words.index(word)
    if word.isdecimal() and 1 <= int(word) <= len(words):
        return int(word) - 1
    raise UsageError(f"the text has no word {word!r}: give one of its words, or a number from 1 to {len(words)}")


def _answer_layout(
    task: SpanAnswering, examples: Examples, words: list[TextWord], token_words: list[np.ndarray]
) -> Layout:
    """The window in which the answer was found."""
    data = task.encode_examples(examples, labelled=False)
    logits = task.window_logits(data)[0]
    spans = best_spans(logits)
    answer = task.best_answers([logits], data, task.null_threshold).answers[0]
    best = spans[0] if spans else None
    number = best.window if best else 0
    window = task.passage_windows(examples)[0][number]
    question, passage = token_words
    owners = np.full(len(window.inputs.ids), -1)
    first, second = window.inputs.first_start, window.inputs.second_start
    owners[first : first + window.question_size] = question[: window.question_size]
    owners[second : second + len(window.window)] = passage[window.window.start : window.window.stop]
    candidates = torch.from_numpy(window.roles != QUESTION)
    candidate_index = (np.cumsum(window.roles != QUESTION) - 1).tolist()  # of tokens among the candidates

    def make_target(found: Tensor) -> PredictionTarget:
        start, end = 0, 0  # no answer
        if best and answer.text:
            start, end = _span_tokens(found[0].cpu(), window.roles, window.offsets, best)

        def score(x: Tensor) -> Tensor:
            seen = x[:, candidates.to(x.device)]
            return log_odds(seen[..., 0], candidate_index[start]) + log_odds(seen[..., 1], candidate_index[end])

        def probability(x: Tensor) -> Tensor:
            p = x[:, candidates.to(x.device)].softmax(1)
            return p[:, candidate_index[start], 0] * p[:, candidate_index[end], 1]

        return PredictionTarget(answer.text or "no answer", "log-odds of its start + its end", score, probability)

    return Layout(
        data=data, sequences=np.array([number]), token_words=[owners], words=words, make_target=make_target
    )  # fmt: skip


def log_odds(logits: Tensor, chosen: int) -> Tensor:
    """[variants]: log(p / (1 - p)) of one class under the softmax of logits [variants, classes]."""
    others = torch.cat([logits[:, :chosen], logits[:, chosen + 1 :]], 1)
    return logits[:, chosen] - others.logsumexp(1) if others.shape[1] else logits[:, chosen]


def _span_tokens(logits: Tensor, roles: np.ndarray, offsets: np.ndarray, span: ScoredSpan) -> tuple[int, int]:
    """The first and the last token of a span of characters; of several bytes of a character the most probable."""
    inside = torch.from_numpy(roles >= PASSAGE)
    starts = torch.from_numpy(offsets[:, 0] == span.start) & inside & torch.from_numpy(roles == PASSAGE)
    ends = torch.from_numpy(offsets[:, 1] == span.end) & inside
    start, end = (logits[:, side].masked_fill(~mask, -torch.inf) for side, mask in ((0, starts), (1, ends)))
    return int(start.argmax()), int(end.argmax())


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
