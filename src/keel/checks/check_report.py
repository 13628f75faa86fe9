"""What a check finds: facts about each file, and findings with their place and remedy."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """Something about the data that its owner should know."""

    severity: Severity
    where: str
    """`file:line`, or the file."""
    cause: str
    remedy: str = ""

    @classmethod
    def of(cls, severity: Severity, sentence: str, *files: str) -> Self:
        """A sentence of Keel's own, which may begin with its place in one of these files and holds its remedy."""
        file = next((each for each in files if sentence.startswith(each)), files[0])
        place = re.match(rf"{re.escape(file)}(:\d+)?:? ", sentence)
        return cls(severity, place[0].rstrip(": ") if place else file, sentence[place.end() :] if place else sentence)

    def __str__(self) -> str:
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{self.severity:8} {self.where}  {self.cause}{remedy}"


@dataclass(kw_only=True)
class Report:
    """All that was found."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts by file."""
    findings: list[Finding] = field(default_factory=list)
    forecast: dict[str, Any] = field(default_factory=dict)

    @property
    def errors(self) -> list[Finding]:
        """What would stop the training, or make it worthless."""
        return [finding for finding in self.findings if finding.severity == "error"]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """The report for a person."""
        for name, facts in self.files.items():
            yield name
            yield from (f"  {fact + ':':20}{_text(value)}" for fact, value in facts.items())
        order = ("error", "warning", "note")
        for finding in sorted(self.findings, key=lambda finding: order.index(finding.severity)):
            yield str(finding)
        for fact, value in self.forecast.items():
            yield f"{fact + ':':20}{_text(value)}"
        if not self.errors:
            yield "nothing stands in the way"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(item)}" for name, item in value.items())
    if isinstance(value, float):
        return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
