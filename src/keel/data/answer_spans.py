"""The gold answers of a question about a passage: spans of it."""

from collections.abc import Sequence
from dataclasses import dataclass

ABSENT = -1
"""Start of an answer that does not occur in its passage."""


NO_ANSWER = "(no answer)"


@dataclass(frozen=True)
class GoldAnswers:
    """The gold answers of a question; none if the passage does not answer it."""

    texts: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()
    """Where each answer starts in the passage, in characters, or `ABSENT`."""

    @classmethod
    def located(cls, passage: str, texts: Sequence[str], starts: Sequence[int | None]) -> "GoldAnswers":
        """GoldAnswers at their given starts or, where the passage has another text there, at the nearest occurrence."""
        return cls(tuple(texts), tuple(map(lambda text, start: find_answer(passage, text, start), texts, starts)))

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The (start, end) offsets of the answers that occur in the passage."""
        pairs = zip(self.starts, self.texts, strict=True)
        return [(start, start + len(text)) for start, text in pairs if start != ABSENT and text]

    def __str__(self) -> str:
        return " | ".join(dict.fromkeys(self.texts)) or NO_ANSWER


def find_answer(passage: str, text: str, start: int | None) -> int:
    """Where an answer starts in a passage: at `start` if it is there, else its occurrence nearest to it."""
    wanted = 0 if start is None else start
    if passage.startswith(text, wanted) and wanted >= 0:
        return wanted
    found: list[int] = []
    at = passage.find(text)
    while at >= 0:
        found.append(at)
        at = passage.find(text, at + 1)
    return min(found, key=lambda each: abs(each - wanted), default=ABSENT)
