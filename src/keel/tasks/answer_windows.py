"""Windows over the passage of a question: model inputs, the tokens that the head reads, and their targets."""

from dataclasses import dataclass

import numpy as np

from keel.data.answer_spans import GoldAnswers
from keel.data.input_windows import ModelInput

NULL, QUESTION, PASSAGE, CONTEXT = range(4)
"""Roles of the tokens that the head reads: "no answer", the question, the passage; a token of the passage with more
context in another window is CONTEXT: a span may end there but not start."""


@dataclass(frozen=True, eq=False)
class PassageTokens:
    """A tokenized passage."""

    ids: list[int]
    offsets: np.ndarray  # [tokens, 2] characters in the passage, ascending

    def find_span(self, answers: GoldAnswers) -> tuple[int, int] | None:
        """The first and the last token of the first answer; None without one."""
        if not answers.spans:
            return None
        start, end = answers.spans[0]
        first = int(np.searchsorted(self.offsets[:, 1], start, "right"))
        last = int(np.searchsorted(self.offsets[:, 0], end, "left")) - 1
        return (first, last) if first <= last else None


@dataclass(frozen=True, kw_only=True, eq=False)
class PassageWindow:
    """A question and a window over its passage as one model input.

    The head reads the token of "no answer", those of the question and those of the window, in this order.
    """

    inputs: ModelInput
    null_position: int
    """Position in the input of the token that stands for "no answer"."""
    question_size: int
    """Tokens of the question."""
    passage: PassageTokens
    window: range
    """Tokens of the passage in this window."""
    owned: range
    """Those of them that have most context in this window."""

    @property
    def positions(self) -> np.ndarray:
        """[tokens of the head] their positions in the input."""
        question, passage = self.inputs.first_start, self.inputs.second_start
        sequences = range(question, question + self.question_size), range(passage, passage + len(self.window))
        return np.array([self.null_position, *sequences[0], *sequences[1]], np.int64)

    @property
    def roles(self) -> np.ndarray:
        """[tokens of the head] NULL, QUESTION, PASSAGE or CONTEXT."""
        roles = np.full(1 + self.question_size + len(self.window), CONTEXT, np.uint8)
        roles[0] = NULL
        roles[1 : self._passage_start] = QUESTION
        roles[self._index_of(self.owned.start) : self._index_of(self.owned.stop)] = PASSAGE
        return roles

    @property
    def offsets(self) -> np.ndarray:
        """[tokens of the head, 2] characters in the passage; 0 of tokens outside it."""
        outside = np.zeros((self._passage_start, 2), np.int64)
        return np.concatenate([outside, self.passage.offsets[self.window.start : self.window.stop]])

    def targets(self, span: tuple[int, int] | None) -> np.ndarray:
        """[tokens of the head, 2] True at the first and the last token of an answer (tokens of the passage); at
        "no answer" if the window does not contain all of it, or there is none."""
        targets = np.zeros((1 + self.question_size + len(self.window), 2), bool)
        inside = span is not None and self.window.start <= span[0] and span[1] < self.window.stop
        first, last = map(self._index_of, span) if span and inside else (0, 0)
        targets[first, 0] = targets[last, 1] = True
        return targets

    @property
    def _passage_start(self) -> int:
        return 1 + self.question_size

    def _index_of(self, token: int) -> int:
        """The index of a token of the passage among those of the head."""
        return self._passage_start + token - self.window.start
