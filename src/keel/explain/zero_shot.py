"""What a language model can do that it was never taught, by how likely it finds given answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

import numpy as np

from keel.data.sentence_splitting import detect_language
from keel.errors import KeelError
from keel.events import OnEvent, ignore
from keel.explain.perplexity import SYMBOLS
from keel.generation.likelihood import Likelihood, continuation_likelihoods, encode_continuations
from keel.generation.next_token import NextTokenModel
from keel.metrics.scores import ERRORS, PredictionError, Scores, Values, concatenate_parts, intervals, resamples
from keel.model import Model

LAST_WORD = re.compile(r"\s*\S+\s*$")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A context and what may follow it."""

    context: str
    choices: tuple[str, ...]
    label: int
    """The number of the right one."""
    where: str


def next_token_model(model: Model) -> NextTokenModel:
    """What a model writes by, ready to be asked."""
    writer = model.objective and model.objective.eval()
    if not isinstance(writer, NextTokenModel):
        what = f"{model.system.name} does not write text"
        if model.task is not None and model.task.labels.kind == "text":
            raise KeelError(f"{what} of its own, it rewrites what it is given: use keel translate")
        if model.task is not None and model.system.is_causal_lm:
            raise KeelError(f"{what} since it has learned to {model.task.name}: take the model that it was made from")
        raise KeelError(f"{what}: take a language model, such as ngram, nnlm, rnn, ulmfit or gpt")
    return writer


def predict_last_words(model: Model, texts: Sequence[tuple[str, str]], *, on_event: OnEvent = ignore) -> Scores:
    """How often the last word of a text, as (where, text), is what the model takes to be likeliest, all pieces of it
    (accuracy), and the perplexity by such words: LAMBADA.

    A word that the vocabulary lacks is never right, and costs its spelling, as in `perplexity`.
    """
    writer, tokenizer = next_token_model(model), model.tokenizer
    parts = [_without_last(where, text) for where, text in texts]
    questions = encode_continuations(tokenizer, [before for before, _ in parts], [word for _, word in parts])
    found = continuation_likelihoods(writer, questions, on_event=on_event)
    unknown = tokenizer.unknown_id if tokenizer.has_special_token("unk") else -1
    lacking = np.array([each.ids.count(unknown) for each in found])
    spelled = [len(word.strip().encode()) + 1 for _, word in parts]
    nats = np.array([-each.log_prob for each in found]) + np.where(lacking > 0, spelled, 0) * log(SYMBOLS)
    right = np.array([each.is_greedy for each in found]) & (lacking == 0)
    values: list[Values] = []
    for weights in resamples(len(nats), np.random.default_rng(0)):
        count = weights.sum(1)
        values.append({"accuracy": weights @ right / count, "perplexity": np.exp(weights @ nats / count)})
    remark = "perplexity is by last word"
    if lacking.any():
        remark += (
            f"; {np.count_nonzero(lacking):,} are not in the vocabulary: wrong, and spelled out at log2({SYMBOLS})"
        )
        remark += " bits for each byte and the end"

    def mistake(number: int) -> PredictionError:
        (where, _), (before, word), each = texts[number], parts[number], found[number]
        said = tokenizer.decode(each.top_ids[:1].tolist()).strip()
        sure = float(np.exp(each.top_log_probs[0]))
        return PredictionError(
            where=where, text=before[-200:], second=None, label=word.strip(), predicted=said, confidence=sure
        )  # fmt: skip

    wrong = np.flatnonzero(~right)
    surest = wrong[np.argsort([-found[number].top_log_probs[0] for number in wrong], kind="stable")][:ERRORS]
    return Scores(
        main="accuracy",
        values=intervals(concatenate_parts(values), len(found)),
        count=len(found),
        errors=[mistake(number) for number in surest.tolist()],
        note=remark,
    )


def _without_last(where: str, text: str) -> tuple[str, str]:
    """A text in two: all before its last word, and that word with the blank before it."""
    text = text.rstrip()
    last = LAST_WORD.search(text)
    if last is None or last.start() == 0:
        raise KeelError(f"{where}: {text!r:.60} has no last word to foretell from others: give two words or more")
    return text[: last.start()], text[last.start() :]


def choose_most_probable(model: Model, questions: Sequence[Question], *, on_event: OnEvent = ignore) -> Scores:
    """How often the right choice is the likeliest one after its context: by log p (sum), by its mean over tokens and
    over bytes, and by how much more likely the context makes it than it is by itself (gain).

    A context that is a question is asked as "Q: ...", and choices stand after "A:"; a blank stands before each, but not
    in Chinese.
    """
    writer, tokenizer = next_token_model(model), model.tokenizer
    contexts, alone, texts = [], [], []
    for question in questions:
        asks = question.context.rstrip().endswith(("?", "？"))
        chinese = detect_language(question.context + "".join(question.choices)) == "zh"
        for choice in question.choices:
            contexts.append(f"Q: {question.context.strip()}\nA:" if asks else question.context.rstrip())
            alone.append("A:" if asks else "")
            texts.append(choice.strip() if chinese else f" {choice.strip()}")
    after = continuation_likelihoods(writer, encode_continuations(tokenizer, contexts, texts), on_event=on_event)
    by_itself = continuation_likelihoods(writer, encode_continuations(tokenizer, alone, texts), on_event=on_event)
    ways = _ways(after, by_itself, texts)
    starts = np.cumsum([0, *(len(question.choices) for question in questions)])
    labels = [question.label for question in questions]
    chosen = {name: np.array([int(score[a:b].argmax()) for a, b in pairwise(starts)]) for name, score in ways.items()}
    values: list[Values] = []
    for weights in resamples(len(questions), np.random.default_rng(0)):
        values.append(
            {f"accuracy {name}": weights @ (best == labels) / weights.sum(1) for name, best in chosen.items()}
        )
    main = "by byte"

    def mistake(number: int) -> PredictionError:
        question, best = questions[number], int(chosen[main][number])
        scores = ways[main][starts[number] : starts[number + 1]]
        chances = np.exp(scores - scores.max())
        return PredictionError(
            where=question.where, text=question.context, second=None, label=question.choices[question.label],
            predicted=question.choices[best], confidence=float(chances[best] / chances.sum()),
        )  # fmt: skip

    wrong = [mistake(number) for number in np.flatnonzero(chosen[main] != labels).tolist()]
    guessing = float(np.mean([1 / len(question.choices) for question in questions]))
    return Scores(
        main=f"accuracy {main}",
        values=intervals(concatenate_parts(values), len(questions)),
        count=len(questions),
        errors=sorted(wrong, key=lambda each: -each.confidence)[:ERRORS],
        note=f"guessing gives {guessing:.3f}; gain is log p after the context less log p without it",
    )


def _ways(after: list[Likelihood], alone: list[Likelihood], texts: list[str]) -> dict[str, np.ndarray]:
    """[choices] the scores by which one may be taken."""
    total = np.array([each.log_prob for each in after])
    return {
        "by sum": total,
        "by token": total / [len(each.ids) for each in after],
        "by byte": total / [len(text.strip().encode()) for text in texts],
        "by gain": total - [each.log_prob for each in alone],
    }
