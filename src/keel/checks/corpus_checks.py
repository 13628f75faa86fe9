"""Checks of raw text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from keel.checks.check_report import Finding
from keel.data.corpus import Corpus
from keel.data.corpus_sample import LONG_WORD, NO_WORD
from keel.data.sentence_splitting import detect_language, split_sentences
from keel.data.text_files import file_kind
from keel.data.tokenizer import Tokenizer

SAMPLE = 1_000_000
"""Characters from which the numbers of sentences and tokens are estimated."""
MAX_COMPARED = 1_000_000
"""Distinct lines, and documents, stored to find duplicates: about 120 MB each."""
LONG_LINE = 1_000_000
MAX_DUPLICATES = 0.05
"""Share of duplicates above which there is a warning."""
CHARACTERS_PER_TOKEN = {"en": 4.4, "zh": 1.1}


@dataclass(frozen=True)
class CorpusFacts:
    """Facts about one file of text."""

    facts: dict[str, Any]
    findings: list[Finding]
    sample: list[str]
    """Documents from its beginning, truncated if very long."""
    tokens: int
    """Estimated number of tokens."""


def check_corpus(corpus: Corpus, tokenizer: Tokenizer | None) -> CorpusFacts:
    """Check a corpus of one file in one pass."""
    (path,) = corpus.files
    characters, sampled = 0, 0
    sample: list[str] = []
    lines, documents = _Duplicates("lines"), _Duplicates("documents")
    longest, size, cut = (0, 0), 0, False
    long_word = 0
    for block in corpus.blocks():
        if block.begins:
            documents.add(block.text, block.line)  # of a very long one only the first megabyte
        for inside, line in enumerate(block.text.split("\n")):
            number = block.line + inside if file_kind(path) == "txt" else block.line
            if inside == 0 and cut and not block.begins:
                size += len(line)
            elif line.strip():
                size = len(line)
                lines.add(line, number)
            else:
                continue
            if size > longest[0]:
                longest = (size, number)
            if not long_word and len(line) >= LONG_WORD and NO_WORD.search(line):
                long_word = number
        cut = not block.text.endswith("\n")
        characters += len(block.text)
        if sampled < SAMPLE:
            sample.append(block.text[:SAMPLE])
            sampled += len(sample[-1])
    if not characters:
        return CorpusFacts({}, [Finding("error", str(path), "contains no text", "give another file")], [], 0)

    language = detect_language("\n".join(sample[:100]))
    sentences = sum(len(split_sentences(text)) for text in sample)
    per_token, unknown = CHARACTERS_PER_TOKEN[language], None
    if tokenizer is not None:
        ids, _ = tokenizer.encode_flat(sample)
        per_token = sampled / max(1, len(ids))
        unknown = float((ids == tokenizer.unknown_id).mean()) if tokenizer.has_special_token("unk") else 0.0
    about = "" if sampled == characters else "about "
    tokens = round(characters / per_token)
    facts: dict[str, Any] = {
        "contents": f"text, {'Chinese' if language == 'zh' else 'English'} by its characters",
        "size": f"{path.stat().st_size / 1e6:,.1f} MB",
        "documents": documents.count,
        "sentences": f"{about}{round(sentences * characters / sampled):,}",
        "tokens": f"{'' if tokenizer and not about else 'about '}{tokens:,}",
        "duplicates": {"lines": lines.copies, "documents": documents.copies},
    }
    if unknown is not None:
        facts["unknown tokens"] = f"{unknown:.2%}"
    findings = list(_findings(str(path), lines, documents, sentences, longest, long_word, unknown))
    return CorpusFacts(facts, findings, sample, tokens)


def _findings(
    name: str,
    lines: "_Duplicates",
    documents: "_Duplicates",
    sentences: int,
    longest: tuple[int, int],
    long_word: int,
    unknown: float | None,
) -> Iterator[Finding]:
    if sentences < 2:
        yield Finding("error", name, "contains only one sentence", "give more text")
    elif documents.count == 1:
        remedy = "put a blank line between documents, or use --system.next_sentence false"
        yield Finding("warning", name, "is a single document, but next sentence prediction needs two", remedy)
    if longest[0] > LONG_LINE:
        yield Finding(
            "warning",
            f"{name}:{longest[1]}",
            f"a line of {longest[0]:,} characters",
            "check whether line breaks were lost",
        )
    if long_word:
        what = f"{LONG_WORD:,} characters or more without whitespace, first here"
        remedy = "the tokenizer does not learn from it, so check whether whitespace was lost"
        yield Finding("warning", f"{name}:{long_word}", what, remedy)
    for compared in (lines, documents):
        if compared.copies > MAX_DUPLICATES * compared.count:
            share = f"{compared.copies / compared.count:.0%} of the {compared.what} are duplicates"
            first, second = compared.first
            remedy = f"use --dedup {compared.what} to keep each once"
            yield Finding("warning", f"{name}:{second}", f"{share} (for example, of line {first})", remedy)
        if compared.full:
            bound = f"only the first {MAX_COMPARED:,} distinct {compared.what} were compared"
            remedy = f"there may be more duplicates, --dedup {compared.what} finds all"
            yield Finding("note", name, bound, remedy)
    if unknown is not None and unknown > 0.01:
        yield Finding(
            "warning", name, f"{unknown:.1%} of the tokens are unknown to the model", "train a tokenizer on this text"
        )


class _Duplicates:
    """Counts texts and duplicates, with the lines of the first pair."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.count = 0
        self.copies = 0
        self.first = (0, 0)
        self.full = False
        self._seen: dict[int, int] = {}

    def add(self, text: str, number: int) -> None:
        self.count += 1
        key = hash(text.strip())
        before = self._seen.get(key)
        if before is not None:
            self.first = self.first if self.copies else (before, number)
            self.copies += 1
        elif len(self._seen) < MAX_COMPARED:
            self._seen[key] = number
        else:
            self.full = True
