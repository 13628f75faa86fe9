"""Report of a data check: facts per file, and findings with location and remedy."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, get_args

from keel.data.notebook_html import html_table
from keel.errors import for_caller
from keel.events import pluralize
from keel.localization import Verbatim, translate
from keel.text_table import pad_right

Severity = Literal["error", "warning", "note"]
LENGTHS = ("median", "95% below", "longest")
"""Names of values; those of other tables, such as counts of labels, are users' words."""
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Finding:
    """A problem or note about the data."""

    severity: Severity
    where: str
    """`file:line`, or the file."""
    cause: str
    remedy: str = ""

    def __post_init__(self) -> None:
        for name in ("cause", "remedy"):  # settings are named as the caller knows them
            object.__setattr__(self, name, for_caller(getattr(self, name)))

    @classmethod
    def of(cls, severity: Severity, sentence: str, *files: str) -> Self:
        """A finding from a message, which may begin with its location in one of these files."""
        file = next((each for each in files if sentence.startswith(each)), files[0])
        location = re.match(rf"{re.escape(file)}(:\d+| (question|article|dialogue) [^:]+(?=: ))?:? ", sentence)
        where = location[0].rstrip(": ") if location else file
        return cls(severity, where, sentence[location.end() :] if location else sentence)

    def __str__(self) -> str:
        remedy = f": {self.remedy}" if self.remedy else ""
        return f"{pad_right(translate(self.severity), 8)} {self.where}  {self.cause}{remedy}"


@dataclass(frozen=True, kw_only=True)
class LanguageShare:
    """How much of a corpus is in one language, and how often it is sampled."""

    COLUMNS: ClassVar = ("language", "text", "share", "sampled", "repeats per epoch", "tokens per word", "unknown")
    language: str
    bytes: int
    share: float
    """Share of the text."""
    sampled: float
    """Share of the samples, after smoothing."""
    repeats: float
    """How often its text is read in an epoch."""
    fertility: float | None = None
    """Tokens per word, or per character where words are not separated by spaces."""
    unit: Literal["word", "character"] = "word"
    unknown: float | None = None
    """Share of unknown tokens."""

    def row(self) -> list[str]:
        """The cells of a table."""
        tokens = "-" if self.fertility is None else f"{self.fertility:.2f}"
        tokens += " per character" if self.unit == "character" and self.fertility is not None else ""
        shares = [f"{self.share:.1%}", f"{self.sampled:.1%}", f"{self.repeats:.2f}"]
        unknown = "-" if self.unknown is None else f"{self.unknown:.2%}"
        return [self.language, f"{self.bytes / 1e6:,.1f} MB", *shares, tokens, unknown]


@dataclass(kw_only=True)
class Report:
    """Facts, findings and forecast of a data check."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts per file."""
    findings: list[Finding] = field(default_factory=list)
    languages: list[LanguageShare] = field(default_factory=list)
    """Shares of each language, where languages are named."""
    forecast: dict[str, Any] = field(default_factory=dict)

    @property
    def errors(self) -> list[Finding]:
        """Findings that would stop training or make it useless."""
        return [finding for finding in self.findings if finding.severity == "error"]

    def __repr__(self) -> str:
        counts = Counter(finding.severity for finding in self.findings)
        return f"Report({', '.join(self.files)}: {', '.join(pluralize(counts[each], each) for each in SEVERITIES)})"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """The findings and facts in a notebook."""
        findings = [(each.severity, each.where, each.cause, each.remedy) for each in self._by_severity()]
        facts = [(name, fact, _text(value)) for name, facts in self.files.items() for fact, value in facts.items()]
        forecast = [("", fact, _text(value)) for fact, value in self.forecast.items()]
        tables = html_table("Check", ("source", "fact", "value"), [*facts, *forecast])
        if self.languages:
            tables += html_table("Languages", LanguageShare.COLUMNS, [each.row() for each in self.languages])
        header = ("severity", "where", "finding", "remedy")
        return tables + (html_table("Findings", header, findings) if findings else "")

    def with_name(self, path: str, name: str) -> Self:
        """The report with another name for a file, which is unique."""
        findings = [
            replace(each, **{part: getattr(each, part).replace(path, name) for part in ("where", "cause", "remedy")})
            for each in self.findings
        ]
        files = {file.replace(path, name): facts for file, facts in self.files.items()}
        return replace(self, files=files, findings=findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def _language_lines(self) -> Iterator[str]:
        """The table of languages, its columns aligned to the right."""
        rows = [LanguageShare.COLUMNS, *(each.row() for each in self.languages)] if self.languages else []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            yield "  ".join([first.strip().ljust(widths[0]), *others])

    def _by_severity(self) -> list[Finding]:
        return sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity))

    def lines(self) -> Iterator[str]:
        """The report as text."""
        for name, facts in self.files.items():
            yield Verbatim(name)
            yield from (f"  {_fact(fact, value)}" for fact, value in facts.items())
        yield from self._language_lines()
        for finding in self._by_severity():
            yield str(finding)
        for fact, value in self.forecast.items():
            yield _fact(fact, value)
        counts = Counter(finding.severity for finding in self.findings)
        yield f"{pluralize(counts['error'], 'error')}, {pluralize(counts['warning'], 'warning')}"


def _fact(name: str, value: Any) -> str:
    return Verbatim(f"{pad_right(translate(name) + ':', 19)} {_shown(value)}")


def _shown(value: Any) -> str:
    """A value in the user's language; names of labels and columns stay."""
    if isinstance(value, dict):
        return ", ".join(
            f"{translate(name) if name in LENGTHS else name}: {_shown(each)}" for name, each in value.items()
        )
    return translate(_text(value))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(item)}" for name, item in value.items())
    if isinstance(value, float):
        return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
