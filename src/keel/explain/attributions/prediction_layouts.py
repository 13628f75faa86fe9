"""Where the words of an example are in the inputs of a task, and which score of its prediction is explained.

The score is the log-odds log(p / (1 - p)) of a label, of a word's tag, or of the start plus that of the end of an
answer. Of a sigmoid it is the logit, of a softmax the logit minus the log-sum-exp of the others: a logit alone may rise
while its probability falls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from keel.data.collation import EncodedExamples
from keel.data.examples import Example, Examples
from keel.data.input_windows import FlatTokens
from keel.data.label_kinds import MultiLabel
from keel.data.tag_schemes import OUTSIDE
from keel.errors import UsageError
from keel.explain.text_tokens import split_text
from keel.tasks import Task
from keel.tasks.answer import SpanAnswering
from keel.tasks.answer_windows import PASSAGE, QUESTION
from keel.tasks.classify import TextClassification
from keel.tasks.span_search import ScoredSpan, best_spans
from keel.tasks.tag import TokenClassification

PLACEHOLDER = 1 << 30
"""The token at index i of the texts has the placeholder id PLACEHOLDER + i."""
EXPLAINED_TASKS = {
    "classify": ("text",),
    "pair": ("first", "second"),
    "tag": ("text",),
    "answer": ("question", "passage"),
}
"""The texts of an example by task."""


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


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the words of an example are in the sequences of its input, and how its target is made."""

    data: EncodedExamples
    sequences: np.ndarray  # [sequences] those of `data` that the prediction is made from
    token_words: list[np.ndarray]  # [tokens] of each sequence: the index of the word, -1 for other tokens
    words: list[TextWord]
    make_target: Callable[[Tensor], PredictionTarget]
    """The target, from logits [1, ...] of the whole input."""


def prediction_layout(
    task: Task, example: Example, texts: tuple[NamedText, ...], *, label: str, word: str, chinese_words: bool
) -> Layout:
    """The layout of an example of a task; `label` and `word` choose what is explained."""
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
