"""What a model connects with two pronouns: occupations, sets of words, and attention."""

from dataclasses import dataclass, field
from typing import Any

from keel.explain.bias.bias_templates import Pair
from keel.explain.bias.pronoun_attention import PronounAttention
from keel.explain.bias.pronoun_scores import PronounScores
from keel.explain.bias.word_associations import AssociationTest
from keel.text_table import TextLines, translated_lines

CAUTION = (
    "Such scores describe this model on these sentences and words. They do not show how it treats people in a task, "
    "and scores near zero do not show that it is free of bias."
)


@dataclass(frozen=True, kw_only=True)
class BiasReport(TextLines):
    """Scores of a model by the methods that it supports."""

    model: str
    language: str
    pronouns: Pair
    scores: list[PronounScores] = field(default_factory=list)
    tests: list[AssociationTest] = field(default_factory=list)
    attention: PronounAttention | None = None

    def __repr__(self) -> str:
        methods = [*(each.method for each in self.scores), *(["attention"] if self.attention is not None else [])]
        return f"BiasReport({self.model!r}, {self.pronouns[0]}:{self.pronouns[1]}, {', '.join(methods)})"

    def lines(self) -> list[str]:
        """One part per method, and a caution."""
        parts = [each.lines() for each in self.scores]
        if self.tests:
            targets = f"word sets and {self.pronouns[0]!r} (positive) or {self.pronouns[1]!r}, WEAT"
            parts.append([targets, "", *(each.line() for each in self.tests)])
        if self.attention is not None:
            parts.append(self.attention.lines())
        separated = [line for part in parts for line in [*part, ""]]
        return [self.model, "", *separated, *translated_lines(CAUTION)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "language": self.language,
            "pronouns": [*self.pronouns],
            "scores": [each.to_dict() for each in self.scores],
            "tests": [each.to_dict() for each in self.tests],
            "attention": None if self.attention is None else self.attention.to_dict(),
            "caution": CAUTION,
        }
