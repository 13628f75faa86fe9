"""Two texts to a label, several labels or a number: entailment, paraphrase, similarity."""

from typing import ClassVar

from keel.tasks.classify import Classify


class Pair(Classify):
    """Both texts stand in one row, the system's marks between them, so that every word of one can look at the other."""

    name: ClassVar[str] = "pair"
    pair: ClassVar[bool] = True
