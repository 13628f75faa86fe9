"""Checks of raw text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keel.checks.check_report import Finding
from keel.checks.shingles import MAX_CHARACTERS, near_duplicates, signatures
from keel.data.corpus import Corpus
from keel.data.language_detection import detect_language, language_name
from keel.data.sentence_splitting import LONG_WORD, NO_WORD, split_sentences
from keel.data.text_files import file_kind
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.events import pluralize

SAMPLE = 1_000_000
"""Characters from which the numbers of sentences and tokens are estimated."""
MAX_COMPARED = 1_000_000
"""Distinct lines, and documents, stored to find duplicates: about 120 MB each."""
MAX_SIMILAR = 50_000
"""Documents of which near-duplicates are searched."""
SIMILAR_AT_ONCE = 1000
MAX_TEST = 50_000_000
"""Characters of a test file that is compared with a corpus."""
LONG_LINE = 1_000_000
MAX_DUPLICATES = 0.05
"""Share of duplicates above which there is a warning."""
CHARACTERS_PER_TOKEN = {"zh": 1.1, "ja": 1.4, "ko": 1.8}
"""Estimates for a vocabulary of the language; 4.4 for others."""


@dataclass
class _Duplicates:
    """Counts texts and duplicates, with the lines of the first pair."""

    what: str
    count: int = 0
    copies: int = 0
    first: tuple[int, int] = (0, 0)
    full: bool = False
    seen: dict[int, int] = field(default_factory=dict)

    def add(self, text: str, number: int) -> None:
        self.count += 1
        key = hash(text.strip())
        before = self.seen.get(key)
        if before is not None:
            self.first = self.first if self.copies else (before, number)
            self.copies += 1
        elif len(self.seen) < MAX_COMPARED:
            self.seen[key] = number
        else:
            self.full = True


class _Beginnings:
    """Signatures of the beginnings of the first documents, to find near-duplicates."""

    def __init__(self) -> None:
        self.lines: list[int] = []
        self.keys: list[int] = []
        self.minhashes: list[np.ndarray] = []
        self.waiting: list[str] = []

    def add(self, text: str, number: int) -> None:
        if len(self.lines) < MAX_SIMILAR:
            self.lines.append(number)
            self.keys.append(hash(text.strip()))
            self.waiting.append(text[:MAX_CHARACTERS])
        if len(self.waiting) == SIMILAR_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self.minhashes.append(signatures(self.waiting))
        self.waiting = []

    def pairs(self) -> list[tuple[int, int]]:
        """The lines of similar documents that are not equal."""
        self._flush()
        found = near_duplicates(np.concatenate(self.minhashes))
        return [(self.lines[one], self.lines[two]) for one, two in found if self.keys[one] != self.keys[two]]


class CorpusFacts:
    """Facts about a corpus of one file or of texts in memory, from one pass over it."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer | None, name: str = "the list"):
        self.corpus, path = corpus, corpus.files[0] if corpus.files else None
        self.name, self.facts, self.tokens = str(path or name), dict[str, Any](), 0
        self.characters = self.bytes = 0
        self.sample: list[str] = []
        """Documents from its beginning, truncated if very long."""
        self.lines, self.documents = _Duplicates("lines"), _Duplicates("documents")
        self.beginnings = _Beginnings()
        self.longest, self.long_word = (0, 0), 0
        """Length and number of the longest line; number of the first line with an over-long word."""
        self._read(corpus, numbered=path is not None and file_kind(path) == "txt")
        if not self.characters:
            return
        sampled = sum(map(len, self.sample))
        beginning = "\n".join(self.sample[:100])
        self.sentences = sum(len(split_sentences(text)) for text in self.sample)
        per_token, self.unknown = CHARACTERS_PER_TOKEN.get(detect_language(beginning), 4.4), 0.0
        if tokenizer is not None:
            ids, _ = tokenizer.encode_flat(self.sample)
            per_token = sampled / max(1, len(ids))
            self.unknown = float((ids == tokenizer.unknown_id).mean()) if tokenizer.has_special_token("unk") else 0.0
        about = "" if sampled == self.characters else "about "
        self.tokens = round(self.characters / per_token)
        size = (path.stat().st_size if path else self.characters) / 1e6
        self.facts = {
            "contents": f"text, {language_name(beginning)} (detected)",
            "size": f"{size:,.1f} {'MB' if path else 'million characters'}",
            "documents": self.documents.count,
            "sentences": f"{about}{round(self.sentences * self.characters / sampled):,}",
            "tokens": f"{'' if tokenizer and not about else 'about '}{self.tokens:,}",
            "duplicates": {"lines": self.lines.copies, "documents": self.documents.copies},
        }
        if tokenizer is not None:
            self.facts["unknown tokens"] = f"{self.unknown:.2%}"

    def _read(self, corpus: Corpus, numbered: bool) -> None:
        """Read the text; lines are `numbered` in plain text, otherwise rows are."""
        sampled, size, cut = 0, 0, False
        for block in corpus.blocks():
            if block.begins:
                self.documents.add(block.text, block.line)  # of a very long one only the first megabyte
                self.beginnings.add(block.text, block.line)
            for inside, line in enumerate(block.text.split("\n")):
                number = block.line + inside if numbered else block.line
                if inside == 0 and cut and not block.begins:
                    size += len(line)
                elif line.strip():
                    size = len(line)
                    self.lines.add(line, number)
                else:
                    continue
                if size > self.longest[0]:
                    self.longest = (size, number)
                if not self.long_word and len(line) >= LONG_WORD and NO_WORD.search(line):
                    self.long_word = number
            cut = not block.text.endswith("\n")
            self.characters += len(block.text)
            self.bytes += len(block.text.encode())
            if sampled < SAMPLE:
                self.sample.append(block.text[:SAMPLE])
                sampled += len(self.sample[-1])

    def numbered_lines(self) -> tuple[str, list[str], list[str]]:
        """Name, lines and their locations, of a corpus that is small enough to be a test file."""
        if self.characters > MAX_TEST:
            remedy = "name the test file first and the corpus after --against"
            raise KeelError(f"{self.name} has {self.characters:,} characters, too many for a test file: {remedy}")
        blocks = [(block.line, block.text.split("\n")) for block in self.corpus.blocks()]
        lines = [(line + inside, text) for line, texts in blocks for inside, text in enumerate(texts) if text.strip()]
        return self.name, [text for _, text in lines], [f"{self.name}:{number}" for number, _ in lines]

    def findings(self) -> Iterator[Finding]:
        """Problems of the text."""
        if not self.characters:
            yield Finding("error", self.name, "contains no text", "give another file")
            return
        if self.sentences < 2:
            yield Finding("error", self.name, "contains only one sentence", "give more text")
        elif self.documents.count == 1:
            remedy = "put a blank line between documents, or use --system.pair_objective sop"
            yield Finding("warning", self.name, "is a single document, but next sentence prediction needs two", remedy)
        size, number = self.longest
        if size > LONG_LINE:
            what, remedy = f"a line of {size:,} characters", "check whether line breaks were lost"
            yield Finding("warning", f"{self.name}:{number}", what, remedy)
        if self.long_word:
            what = f"{LONG_WORD:,} characters or more without whitespace, first here"
            remedy = "the tokenizer does not learn from it, so check whether whitespace was lost"
            yield Finding("warning", f"{self.name}:{self.long_word}", what, remedy)
        for compared in (self.lines, self.documents):
            if compared.copies > MAX_DUPLICATES * compared.count:
                share = f"{compared.copies / compared.count:.0%} of the {compared.what} are duplicates"
                first, second = compared.first
                remedy = f"use --dedup {compared.what} to keep each once"
                yield Finding("warning", f"{self.name}:{second}", f"{share} (for example, of line {first})", remedy)
            if compared.full:
                bound = f"only the first {MAX_COMPARED:,} distinct {compared.what} were compared"
                remedy = f"there may be more duplicates, --dedup {compared.what} finds all"
                yield Finding("note", self.name, bound, remedy)
        if similar := self.beginnings.pairs():
            one, two = similar[0]
            what = f"{pluralize(len(similar), 'near-duplicate document', 'near-duplicate documents')}"
            more = f" among the first {MAX_SIMILAR:,}" if self.documents.count > MAX_SIMILAR else ""
            severity = "warning" if len(similar) > MAX_DUPLICATES * min(self.documents.count, MAX_SIMILAR) else "note"
            remedy = "drop them if the text was collected twice"
            yield Finding(severity, f"{self.name}:{two}", f"{what}{more} (for example, of line {one})", remedy)
        if self.unknown > 0.01:
            what = f"{self.unknown:.1%} of the tokens are unknown to the model"
            yield Finding("warning", self.name, what, "train a tokenizer on this text")
