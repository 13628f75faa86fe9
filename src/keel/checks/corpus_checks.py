"""A file of raw text, before anything is learned from it."""

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
"""Characters from which sentences and tokens are estimated."""
COMPARED = 1_000_000
"""Different lines, and as many documents, that are remembered to find those that come again: about 120 MB each."""
LONG_LINE = 1_000_000
MANY = 0.05
"""The share of lines or documents that come again from which it is worth a warning."""
CHARACTERS_PER_TOKEN = {"en": 4.4, "zh": 1.1}


@dataclass(frozen=True)
class CorpusFacts:
    """What one file of text holds."""

    facts: dict[str, Any]
    findings: list[Finding]
    sample: list[str]
    """Documents from its beginning, of a very long one a part."""
    tokens: int
    """An estimate."""


def check_corpus(corpus: Corpus, tokenizer: Tokenizer | None) -> CorpusFacts:
    """Read all of a corpus of one file once."""
    (path,) = corpus.files
    characters, sampled = 0, 0
    sample: list[str] = []
    lines, documents = _Compared("lines"), _Compared("documents")
    longest, size, cut = (0, 0), 0, False
    long_word = 0
    for block in corpus.blocks():
        if block.begins:
            documents.add(block.text, block.line)  # of a very long one its first megabyte must do
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
        return CorpusFacts({}, [Finding("error", str(path), "holds no text", "give another file")], [], 0)

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
        "holds": f"text, {'Chinese' if language == 'zh' else 'English'} by its letters",
        "size": f"{path.stat().st_size / 1e6:,.1f} MB",
        "documents": documents.count,
        "sentences": f"{about}{round(sentences * characters / sampled):,}",
        "tokens": f"{'' if tokenizer and not about else 'about '}{tokens:,}",
        "seen before": {"lines": lines.copies, "documents": documents.copies},
    }
    if unknown is not None:
        facts["unknown pieces"] = f"{unknown:.2%}"
    findings = list(_findings(str(path), lines, documents, sentences, longest, long_word, unknown))
    return CorpusFacts(facts, findings, sample, tokens)


def _findings(
    name: str,
    lines: "_Compared",
    documents: "_Compared",
    sentences: int,
    longest: tuple[int, int],
    long_word: int,
    unknown: float | None,
) -> Iterator[Finding]:
    if sentences < 2:
        yield Finding("error", name, "holds one sentence only", "there is nothing to learn from it, give more text")
    elif documents.count == 1:
        remedy = "put a blank line between documents, or say --system.next_sentence false"
        yield Finding("warning", name, "is one single document, and next sentence prediction needs two", remedy)
    if longest[0] > LONG_LINE:
        yield Finding(
            "warning",
            f"{name}:{longest[1]}",
            f"a line of {longest[0]:,} characters",
            "look whether line breaks were lost",
        )
    if long_word:
        what = f"{LONG_WORD:,} characters or more without a blank, the first such run here"
        remedy = "no pieces are learned from it, so look whether blanks were lost"
        yield Finding("warning", f"{name}:{long_word}", what, remedy)
    for compared in (lines, documents):
        if compared.copies > MANY * compared.count:
            share = f"{compared.copies / compared.count:.0%} of the {compared.what} were seen before"
            first, second = compared.first
            remedy = f"--dedup {compared.what} keeps each only once"
            yield Finding("warning", f"{name}:{second}", f"{share} (this one in line {first})", remedy)
        if compared.full:
            bound = f"only the first {COMPARED:,} different {compared.what} were remembered to find copies"
            remedy = f"there may be more, --dedup {compared.what} finds all"
            yield Finding("note", name, bound, remedy)
    if unknown is not None and unknown > 0.01:
        yield Finding(
            "warning",
            name,
            f"{unknown:.1%} of the pieces are unknown to the model",
            "learn a tokenizer of its own from this text",
        )


class _Compared:
    """How many texts there are, how many of them came again, and the lines of the first that did."""

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
        elif len(self._seen) < COMPARED:
            self._seen[key] = number
        else:
            self.full = True
