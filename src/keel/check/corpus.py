"""A file of raw text, before anything is learned from it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keel.check.report import Finding
from keel.errors import KeelError
from keel.events import OnEvent
from keel.text.files import kind_of, open_text, read_table
from keel.text.sentences import detect_language, split_sentences
from keel.text.tokenizer import Tokenizer

SAMPLE = 1_000_000
"""Characters from which sentences and tokens are estimated."""
COMPARED = 3_000_000
"""Lines and documents that are remembered, to find those that come again."""
LONG_LINE = 1_000_000
MANY = 0.05
"""The share of lines or documents that come again from which it is worth a warning."""
CHARACTERS_PER_TOKEN = {"en": 4.4, "zh": 1.1}


@dataclass(frozen=True)
class Text:
    """What one file of text holds."""

    facts: dict[str, Any]
    findings: list[Finding]
    sample: list[str]
    """Whole documents from its beginning."""
    tokens: int
    """An estimate."""


def check_corpus(path: Path, *, column: str, encoding: str, tokenizer: Tokenizer | None, on_event: OnEvent) -> Text:
    """Read all of a text once."""
    lines, characters, documents, longest, sampled = 0, 0, 0, (0, 0), 0
    sample: list[str] = []
    line_copies, document_copies = _Copies(), _Copies()
    for number, document in _documents(path, column, encoding, on_event):
        documents += 1
        document_copies.add(document, number)
        for inside, line in enumerate(document.split("\n")):
            lines += 1
            line_copies.add(line, number + inside)
            longest = max(longest, (len(line), number + inside))
        characters += len(document)
        if sampled < SAMPLE:
            sample.append(document[:SAMPLE])
            sampled += len(sample[-1])
    if not characters:
        return Text({}, [Finding("error", str(path), "holds no text", "give another file")], [], 0)

    language = detect_language("\n".join(sample[:100]))
    sentences = sum(len(split_sentences(line)) for document in sample for line in document.split("\n"))
    per_token, unknown = CHARACTERS_PER_TOKEN[language], None
    if tokenizer is not None:
        ids, _ = tokenizer.encode_flat(sample)
        per_token = sampled / max(1, len(ids))
        unknown = float((ids == tokenizer.unknown_id).mean()) if tokenizer.has("unk") else 0.0
    about = "" if sampled == characters else "about "
    tokens = round(characters / per_token)
    facts: dict[str, Any] = {
        "holds": f"text, {'Chinese' if language == 'zh' else 'English'} by its letters",
        "size": f"{path.stat().st_size / 1e6:,.1f} MB",
        "documents": documents,
        "sentences": f"{about}{round(sentences * characters / sampled):,}",
        "tokens": f"{'' if tokenizer and not about else 'about '}{tokens:,}",
        "seen before": {"lines": line_copies.count, "documents": document_copies.count},
    }
    if unknown is not None:
        facts["unknown pieces"] = f"{unknown:.2%}"
    return Text(
        facts,
        list(_findings(str(path), lines, documents, sentences, longest, line_copies, document_copies, unknown)),
        sample,
        tokens,
    )


def _findings(
    name: str,
    lines: int,
    documents: int,
    sentences: int,
    longest: tuple[int, int],
    line_copies: "_Copies",
    document_copies: "_Copies",
    unknown: float | None,
) -> Iterator[Finding]:
    if sentences < 2:
        yield Finding("error", name, "holds one sentence only", "there is nothing to learn from it, give more text")
    elif documents == 1:
        remedy = "put a blank line between documents, or say --system.next_sentence false"
        yield Finding("warning", name, "is one single document, and next sentence prediction needs two", remedy)
    if longest[0] > LONG_LINE:
        yield Finding(
            "warning",
            f"{name}:{longest[1]}",
            f"a line of {longest[0]:,} characters",
            "look whether line breaks were lost",
        )
    for what, copies, all_of_them in (("lines", line_copies, lines), ("documents", document_copies, documents)):
        if copies.count > MANY * all_of_them:
            share = f"{copies.count / all_of_them:.0%} of the {what} were seen before"
            first, second = copies.first
            remedy = f"--dedup {what} keeps each only once"
            yield Finding("warning", f"{name}:{second}", f"{share} (this one in line {first})", remedy)
    if unknown is not None and unknown > 0.01:
        yield Finding(
            "warning",
            name,
            f"{unknown:.1%} of the pieces are unknown to the model",
            "learn a tokenizer of its own from this text",
        )


class _Copies:
    """How many texts came again, and the lines of the first that did."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.count = 0
        self.first = (0, 0)

    def add(self, text: str, number: int) -> None:
        key = hash(text.strip())
        before = self.seen.get(key)
        if before is not None:
            self.first = self.first if self.count else (before, number)
            self.count += 1
        elif len(self.seen) < COMPARED:
            self.seen[key] = number


def _documents(path: Path, column: str, encoding: str, on_event: OnEvent) -> Iterator[tuple[int, str]]:
    """Every document and the line where it begins; a very long one comes in parts."""
    if kind_of(path) != "txt":
        for number, row in read_table(path, encoding, on_event):
            if not isinstance(text := row.get(column), str):
                known = ", ".join(map(repr, row))
                raise KeelError(
                    f"{path}:{number}: no text in a column {column!r} among {known}: name one with --text-column"
                )
            yield number, text
        return
    held: list[str] = []
    start, size = 0, 0
    for number, line in open_text(path, encoding, on_event):
        if line.strip() and size < SAMPLE:
            start = start if held else number
            held.append(line)
            size += len(line)
            continue
        if held:
            yield start, "\n".join(held)
        held, size, start = [line] if line.strip() else [], len(line), number
    if held:
        yield start, "\n".join(held)
