"""Search for the best answer spans among the start and end logits of a question's windows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

N_BEST = 20
"""Spans that are kept for each question, as in BERT's script for SQuAD."""
MAX_ANSWER_TOKENS = 30


@dataclass(frozen=True)
class WindowLogits:
    """Start and end logits of a window over a passage."""

    starts: np.ndarray  # [tokens]
    ends: np.ndarray  # [tokens]
    startable: np.ndarray  # [tokens] whether a span may start here: False where another window has more context
    offsets: np.ndarray  # [tokens, 2] characters in the passage
    null: float
    """Start plus end logit of "no answer"."""

    @property
    def end_before_start(self) -> bool:
        """Whether the most probable end precedes the most probable start: the two contradict each other."""
        return bool(len(self.starts) and self.ends.argmax() < self.starts.argmax())


def mean_logits(windows: Sequence[WindowLogits]) -> WindowLogits:
    """The mean of the logits of several models for one window.

    Inside a window this is the mean of the log probabilities, apart from a constant.
    """
    return replace(
        windows[0],
        starts=np.mean([window.starts for window in windows], axis=0),
        ends=np.mean([window.ends for window in windows], axis=0),
        null=float(np.mean([window.null for window in windows])),
    )


@dataclass(frozen=True)
class ScoredSpan:
    """A span of characters, and the sum of its start and end logit."""

    start: int
    end: int
    score: float
    window: int
    """Index of the window that it was found in."""


def best_spans(windows: Sequence[WindowLogits], most: int = N_BEST) -> list[ScoredSpan]:
    """The spans i..j with the highest start_i + end_j of all windows, i <= j < i + MAX_ANSWER_TOKENS, best first."""
    found: list[ScoredSpan] = []
    for number, window in enumerate(windows):
        scores = _span_scores(window)
        count = min(most, int(np.isfinite(scores).sum()))
        best = np.argpartition(scores, -count, axis=None)[-count:] if count else []
        for first, length in (divmod(int(cell), MAX_ANSWER_TOKENS) for cell in best):
            start, end = int(window.offsets[first, 0]), int(window.offsets[first + length, 1])
            found.append(ScoredSpan(start, end, float(scores[first, length]), number))
    distinct: dict[tuple[int, int], ScoredSpan] = {}
    for span in sorted(found, key=lambda span: (-span.score, span.start, span.end)):
        distinct.setdefault((span.start, span.end), span)
    return [*distinct.values()][:most]


def _span_scores(window: WindowLogits) -> np.ndarray:
    """[tokens, MAX_ANSWER_TOKENS]: start logit of a token plus end logit of the n-th token after it."""
    ends = np.pad(window.ends, (0, MAX_ANSWER_TOKENS), constant_values=-np.inf)
    scores = window.starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, MAX_ANSWER_TOKENS)[:-1]
    return np.where(window.startable[:, None], scores, -np.inf)
