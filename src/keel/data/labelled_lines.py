"""Published text files of labelled texts: "label text" lines, labelled trees, and a file of labels beside the texts."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from keel.data.row_errors import row_error
from keel.data.text_files import open_text
from keel.errors import KeelError
from keel.events import OnEvent, note, pluralize

LABEL_TEXT = re.compile(r"(\d|[A-Z]{2,}:[A-Za-z]+) +(\S.*)")
"""A digit (CR, Subj, MPQA) or a class with its subclass (TREC's DESC:manner) before a text."""
LEAST_LINES = 4
FROM_ZERO = [[str(number) for number in range(count)] for count in range(2, 7)]
"""Digits that are classes in published files: 0 and 1 (MR, CR, Subj, MPQA) to 0 ... 5 (TREC); counts start at 1."""
STARS = ["1", "2", "3", "4", "5"]
LEAST_SHARE, LEAST_SHARE_OF_STARS = 0.01, 0.05
"""Share of the lines that each digit has if it is a class; of stars, which may be counts, a larger one."""
TREE = re.compile(r"\s*\((\d+) .*\)\s*")
LEAF = re.compile(r"\(\d+ ([^()\s]+)\)")
ESCAPED = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
LABEL_FILES = ("label", "label.txt", *(f"label.{suffix}" for suffix in ("xz", "gz", "zst", "bz2")))


def parse_labelled_lines(
    lines: list[str], name: str, numbers: list[int], on_event: OnEvent, *, whole: bool = False
) -> tuple[list[int], list[str], list[str]] | None:
    """Line numbers, labels and texts of lines with a label before the text, or of trees (SST); None for other text.

    With `whole`, nothing is cut from a line: what looks like a label before a text is reported only.
    """
    if is_tree(lines[0] if lines else ""):
        pattern, what = TREE, "bracketed trees with labels, the label of the whole tree is used"
    elif not has_leading_labels(lines):
        return None
    elif whole:
        note_whole_lines(name, on_event)
        return None
    else:
        pattern, what = LABEL_TEXT, "lines of a label, a space and a text (--format text reads whole lines as texts)"
    note(on_event, f"{name}: read as {what}")
    kept: list[int] = []
    labels: list[str] = []
    texts: list[str] = []
    for number, line in zip(numbers, lines, strict=True):
        found = pattern.fullmatch(line)
        words = LEAF.findall(line) if pattern is TREE else []
        if found is None or (pattern is TREE and not words):
            row_error(KeelError(f"{name}:{number}: no label, unlike in other lines: add it, or drop the line"))
            continue
        kept.append(number)
        labels.append(found[1])
        texts.append(" ".join(ESCAPED.get(str(word), str(word)) for word in words) if words else found[2])
    return kept, labels, texts


def is_tree(line: str) -> bool:
    """Whether a line is a tree whose nodes have labels: (3 (2 It) (4 works))."""
    return TREE.fullmatch(line) is not None and LEAF.search(line) is not None


def has_leading_labels(lines: Iterable[str]) -> bool:
    """Whether nearly all lines start with one of a few labels, which is neither a numbering nor a count.

    Bare digits are labels only if they start at 0, or are 1 to 5 in all lines, and each of them is frequent.
    """
    counts = Counter(match[1] if (match := LABEL_TEXT.match(line)) else "" for line in lines)
    others = counts.pop("", 0)
    found = counts.total()
    enough = found >= LEAST_LINES and found * 20 >= (found + others) * 19 and 1 < len(counts) <= found / 2
    if not enough or len({label.isdigit() for label in counts}) > 1:
        return False
    digits, rarest = sorted(counts), min(counts.values())
    if not digits[0].isdigit():
        return True
    if digits == STARS:
        return not others and rarest >= max(2, LEAST_SHARE_OF_STARS * found)
    return digits in FROM_ZERO and rarest >= max(2, LEAST_SHARE * found)


def note_whole_lines(name: str, on_event: OnEvent) -> None:
    """Report that lines are read as texts although they seem to start with labels."""
    what = "lines seem to start with labels, but are read as texts from their first character"
    note(on_event, f"{name}: {what}: remove the labels from the file if they are no part of the texts")


def label_file(path: Path) -> Path | None:
    """The file of labels beside the texts of ATIS and SNIPS as published: seq.in, seq.out, label."""
    if not path.name.startswith("seq.in"):
        return None
    return next((file for name in LABEL_FILES if (file := path.with_name(name)).is_file()), None)


def read_label_file(path: Path, lines: list[str], name: str, encoding: str, on_event: OnEvent) -> list[str]:
    """A label for each line of texts."""
    labels = [line.strip() for _, line in open_text(path, encoding, on_event)]
    while labels and not labels[-1]:
        labels.pop()
    if len(labels) != len(lines):
        counts = f"{pluralize(len(lines), 'text')}, but {path.name} beside it has {pluralize(len(labels), 'label')}"
        raise KeelError(f"{name} has {counts}: give matching files")
    note(on_event, f"{name}: labels in {path.name} beside it")
    return labels
