"""Scores of answer spans: exact match and F1, as the official scripts of SQuAD and CMRC 2018 compute them."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from keel.data.answer_spans import NO_ANSWER
from keel.data.examples import Examples
from keel.data.predictions import AnswerPredictions, SpanAnswer
from keel.metrics.bootstrap import bootstrap, safe_ratio
from keel.metrics.scores import Scores, most_confident
from keel.metrics.squad_scores import AnswerScorer, answer_language, best_null_threshold

SAMPLE = 100
"""Passages by which the language is recognised."""


@dataclass(frozen=True)
class AnswerScores:
    """Exact match and F1 of each question."""

    exact: np.ndarray  # [questions]
    f1: np.ndarray  # [questions]
    answered_f1: np.ndarray  # [questions] F1 of the best span, whether or not it is the prediction
    null_odds: np.ndarray  # [questions]
    answerable: np.ndarray  # [questions] bool

    @classmethod
    def of(cls, examples: Examples, predictions: AnswerPredictions) -> Self:
        scorer = AnswerScorer(answer_language((examples.seconds or [])[:SAMPLE]))
        gold = [answers.texts for answers in examples.values]
        pairs = [*zip(predictions.answers, gold, strict=True)]
        return cls(
            exact=np.array([scorer.exact_match(answer.text, texts) for answer, texts in pairs]),
            f1=np.array([scorer.f1(answer.text, texts) for answer, texts in pairs]),
            answered_f1=np.array([scorer.f1(_best_span(answer), texts) for answer, texts in pairs]),
            null_odds=np.array([answer.null_odds for answer in predictions.answers]),
            answerable=np.array([bool(texts) for texts in gold]),
        )

    def best_threshold(self) -> tuple[float, float]:
        """The threshold of "no answer" with the highest F1, and this F1."""
        return best_null_threshold(self.null_odds, self.answered_f1, self.answerable)


def _best_span(answer: SpanAnswer) -> str:
    return next((each.text for each in answer.alternatives if each.text), "")


def score_answers(examples: Examples, predictions: AnswerPredictions, *, seed: int = 0) -> Scores:
    """F1 and exact match; where some questions have no answer, also those of each kind."""
    found = AnswerScores.of(examples, predictions)
    count, has_answer = len(examples), found.answerable

    def statistics(weights: np.ndarray) -> dict[str, np.ndarray]:
        values = {"answer_f1": weights @ found.f1 / count, "exact_match": weights @ found.exact / count}
        if not has_answer.all():
            answerable, rest = weights * has_answer, weights * ~has_answer
            if has_answer.any():
                values["answerable_f1"] = safe_ratio(answerable @ found.f1, answerable.sum(1))
            values["unanswerable_accuracy"] = safe_ratio(rest @ found.exact, rest.sum(1))
        return values

    wrong, texts = np.flatnonzero(found.f1 == 0), [str(each) or NO_ANSWER for each in predictions.answers]
    return Scores(
        main="answer_f1",
        values=bootstrap(statistics, count, np.random.default_rng(seed)),
        count=count,
        errors=most_confident(examples, wrong, predictions.estimates[wrong], texts),
        note=_contradictions(predictions, has_answer),
    )


def _contradictions(predictions: AnswerPredictions, has_answer: np.ndarray) -> str:
    """How often the most probable end precedes the most probable start, and whether that is a sign of no answer."""
    odd = np.array([answer.end_before_start for answer in predictions.answers])
    text = f"end before start: {odd.mean():.1%} of the questions"
    if has_answer.any() and not has_answer.all():
        text += f" ({odd[~has_answer].mean():.1%} of the unanswerable, {odd[has_answer].mean():.1%} of the others)"
    return text
