"""Zero-shot evaluation of language models by likelihood: last words (LAMBADA) and multiple choice."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log

import numpy as np

from keel.data.label_kinds import TextTarget
from keel.data.sentence_splitting import detect_language
from keel.errors import KeelError
from keel.events import OnEvent, ignore
from keel.explain.perplexity import BYTE_SYMBOLS
from keel.generation.likelihood import Likelihood, continuation_likelihoods, encode_continuations
from keel.metrics.scores import ERRORS, PredictionError, Scores, Values, concatenate_parts, intervals, resamples
from keel.model import Model
from keel.systems.capabilities import CausalLM, LanguageModelSystem

LAST_WORD = re.compile(r"\s*\S+\s*$")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A context with several continuations, one of them correct."""

    context: str
    choices: tuple[str, ...]
    label: int
    """Index of the correct choice."""
    where: str


def next_token_model(model: Model) -> CausalLM:
    """The language model of a loaded model, in evaluation mode."""
    language_model = model.objective and model.objective.eval()
    if not isinstance(language_model, CausalLM):
        what = f"{model.system.name} does not generate text"
        if model.task is not None and isinstance(model.task.labels.kind, TextTarget):
            raise KeelError(f"{what} from a prompt, it is a seq2seq model: use keel translate")
        if model.task is not None and isinstance(model.system, LanguageModelSystem):
            raise KeelError(f"{what} after fine-tuning for {model.task.name}: use the model that was fine-tuned")
        raise KeelError(f"{what}: use a language model, such as ngram, nnlm, rnn, ulmfit or gpt")
    return language_model


def predict_last_words(model: Model, texts: Sequence[tuple[str, str]], *, on_event: OnEvent = ignore) -> Scores:
    """Last-word prediction as in LAMBADA, for (where, text) pairs: accuracy of greedy decoding over all tokens of the
    last word, and perplexity per last word.

    An unknown word counts as wrong and costs its bytes, as in `perplexity`.
    """
    tokenizer = model.tokenizer
    parts = [_split_last_word(where, text) for where, text in texts]
    questions = encode_continuations(tokenizer, [before for before, _ in parts], [word for _, word in parts])
    found = continuation_likelihoods(next_token_model(model), questions, on_event=on_event)
    unknown_id = tokenizer.unknown_id if tokenizer.has_special_token("unk") else -1
    unknown = np.array([each.ids.count(unknown_id) for each in found])
    sizes = [len(word.strip().encode()) + 1 for _, word in parts]
    nats = np.array([-each.log_prob for each in found]) + np.where(unknown > 0, sizes, 0) * log(BYTE_SYMBOLS)
    correct = np.array([each.is_greedy for each in found]) & (unknown == 0)
    values: list[Values] = []
    for weights in resamples(len(nats), np.random.default_rng(0)):
        count = weights.sum(1)
        values.append({"accuracy": weights @ correct / count, "perplexity": np.exp(weights @ nats / count)})
    note = "perplexity is per last word"
    if unknown.any():
        cost = f"wrong, and log2({BYTE_SYMBOLS}) bits for each byte and the end"
        note += f"; {np.count_nonzero(unknown):,} are not in the vocabulary: {cost}"

    def error(index: int) -> PredictionError:
        (where, _), (before, word), each = texts[index], parts[index], found[index]
        top = tokenizer.decode(each.top_ids[:1].tolist()).strip()
        confidence = float(np.exp(each.top_log_probs[0]))
        return PredictionError(
            where=where, text=before[-200:], second=None, label=word.strip(), predicted=top, confidence=confidence
        )  # fmt: skip

    wrong = np.flatnonzero(~correct)
    by_confidence = wrong[np.argsort([-found[index].top_log_probs[0] for index in wrong], kind="stable")]
    return Scores(
        main="accuracy",
        values=intervals(concatenate_parts(values), len(found)),
        count=len(found),
        errors=[error(index) for index in by_confidence[:ERRORS].tolist()],
        note=note,
    )


def _split_last_word(where: str, text: str) -> tuple[str, str]:
    """A text without its last word, and that word with the whitespace before it."""
    text = text.rstrip()
    last = LAST_WORD.search(text)
    if last is None or last.start() == 0:
        raise KeelError(f"{where}: {text!r:.60} has no last word after a context: give two words or more")
    return text[: last.start()], text[last.start() :]


def choose_most_probable(model: Model, questions: Sequence[Question], *, on_event: OnEvent = ignore) -> Scores:
    """Multiple-choice accuracy of the most probable choice: by log p (sum), normalised per token and per byte, and by
    log p(choice | context) - log p(choice) (gain).

    A context that ends with a question mark is presented as "Q: ...", its choices after "A:"; a space precedes each
    choice, except in Chinese.
    """
    language_model, tokenizer = next_token_model(model), model.tokenizer
    contexts, neutral, texts = [], [], []
    for question in questions:
        is_question = question.context.rstrip().endswith(("?", "？"))
        chinese = detect_language(question.context + "".join(question.choices)) == "zh"
        for choice in question.choices:
            contexts.append(f"Q: {question.context.strip()}\nA:" if is_question else question.context.rstrip())
            neutral.append("A:" if is_question else "")
            texts.append(choice.strip() if chinese else f" {choice.strip()}")
    conditional, unconditional = (
        continuation_likelihoods(language_model, encode_continuations(tokenizer, before, texts), on_event=on_event)
        for before in (contexts, neutral)
    )
    scorings = _scorings(conditional, unconditional, texts)
    starts = np.cumsum([0, *(len(question.choices) for question in questions)])
    labels = [question.label for question in questions]
    chosen = {
        name: np.array([int(score[a:b].argmax()) for a, b in pairwise(starts)]) for name, score in scorings.items()
    }
    values: list[Values] = []
    for weights in resamples(len(questions), np.random.default_rng(0)):
        values.append(
            {f"accuracy {name}": weights @ (best == labels) / weights.sum(1) for name, best in chosen.items()}
        )
    main = "per byte"

    def error(index: int) -> PredictionError:
        question, best = questions[index], int(chosen[main][index])
        scores = scorings[main][starts[index] : starts[index + 1]]
        powers = np.exp(scores - scores.max())
        return PredictionError(
            where=question.where, text=question.context, second=None, label=question.choices[question.label],
            predicted=question.choices[best], confidence=float(powers[best] / powers.sum()),
        )  # fmt: skip

    wrong = [error(index) for index in np.flatnonzero(chosen[main] != labels).tolist()]
    baseline = float(np.mean([1 / len(question.choices) for question in questions]))
    return Scores(
        main=f"accuracy {main}",
        values=intervals(concatenate_parts(values), len(questions)),
        count=len(questions),
        errors=sorted(wrong, key=lambda each: -each.confidence)[:ERRORS],
        note=f"random baseline {baseline:.3f}; gain is log p with the context minus log p without it",
    )


def _scorings(
    conditional: list[Likelihood], unconditional: list[Likelihood], texts: list[str]
) -> dict[str, np.ndarray]:
    """Scores [choices] under each normalisation."""
    total = np.array([each.log_prob for each in conditional])
    return {
        "by sum": total,
        "per token": total / [len(each.ids) for each in conditional],
        "per byte": total / [len(text.strip().encode()) for text in texts],
        "by gain": total - [each.log_prob for each in unconditional],
    }
