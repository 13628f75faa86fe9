"""Findings about similar texts: near-duplicates within and between files, and overlap with a corpus."""

from collections.abc import Iterator, Sequence

import numpy as np

from keel.checks.check_report import Finding
from keel.checks.shingles import OVERLAP, near_duplicates, overlapping, signatures
from keel.data.corpus import Corpus
from keel.data.examples import Examples
from keel.events import pluralize

SHOWN = 5
"""Examples of overlap that are reported with their locations."""


def near_duplicate_findings(files: list[Examples]) -> Iterator[Finding]:
    """Texts that differ by few words from another of their file, or from one of the first, the training file."""
    keys = [examples.text_keys() for examples in files]
    minhashes = [signatures(each) for each in keys]
    for number, examples in enumerate(files):
        # The questions on one passage are alike, and a split keeps them together.
        groups = np.unique(examples.groups, return_inverse=True)[1] if examples.groups else None
        found = near_duplicates(minhashes[number], groups)
        pairs = [(one, two) for one, two in found if keys[number][one] != keys[number][two]]
        if pairs:
            one, two = (examples.locations[index] for index in pairs[0])
            what = pluralize(len(pairs), "near-duplicate", "near-duplicates")
            remedy = "drop them, or keep each with its like on one side of a split"
            yield Finding("note", two, f"{what} (for example, of {one})", remedy)
        if number:
            yield from _between(
                files[0], examples, keys[0], keys[number], np.concatenate([minhashes[0], minhashes[number]])
            )


def _between(
    first: Examples, other: Examples, first_keys: list[str], other_keys: list[str], minhashes: np.ndarray
) -> Iterator[Finding]:
    groups, keys = np.arange(len(minhashes)) >= len(first), first_keys + other_keys
    pairs = [(one, two) for one, two in near_duplicates(minhashes, groups) if keys[one] != keys[two]]
    if pairs:
        one, two = pairs[0]
        share = f"{len(pairs):,} of its {len(other):,} texts ({len(pairs) / len(other):.1%})"
        what = f"{share} are near-duplicates of texts in {first.source} (for example, {first.locations[one]})"
        remedy = "scores on them measure memorisation, so drop them from one file"
        yield Finding("warning", other.locations[two - len(first)], what, remedy)


def overlap_findings(name: str, texts: Sequence[str], locations: Sequence[str], corpus: Corpus) -> Iterator[Finding]:
    """Texts of a test file that share 13 consecutive words (characters in Chinese) with a corpus."""
    found, short = overlapping(texts, corpus)
    compared = len(texts) - short
    if short:
        what = f"{pluralize(short, 'text has', 'texts have')} fewer than {OVERLAP} words and cannot be compared"
        yield Finding("note", name, f"{what} with {corpus.paths}")
    share = f"{len(found):,} of {pluralize(compared, 'text')} ({len(found) / max(1, compared):.1%})"
    if not found:
        yield Finding("note", name, f"no text shares {OVERLAP} words in a row with {corpus.paths}")
        return
    remedy = "take them out of the corpus, or report scores without them"
    what = f"{share} share {OVERLAP} words in a row with {corpus.paths}"
    yield Finding("warning", name, what, remedy)
    for each in found[:SHOWN]:
        yield Finding("note", locations[each.text], f"overlaps with {each.where}: {each.words[:100]!r}")
