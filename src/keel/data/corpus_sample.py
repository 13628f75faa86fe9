"""A seeded sample of a corpus, to learn a tokenizer from."""

import heapq
import random
import re
from collections.abc import Iterator

from keel.data.corpus import Corpus, cut_text
from keel.errors import KeelError
from keel.events import OnEvent, note

PART = 1 << 16
"""Characters that are drawn together."""

LONG_WORD = 1000
NO_WORD = re.compile(rf"(?<![^\s\u3000-\u9fff])[^\s\u3000-\u9fff]{{{LONG_WORD},}}")
"""Runs that are data rather than words: learning from them would take memory for nothing."""


def draw_sample(corpus: Corpus, size: int, seed: int, on_event: OnEvent) -> list[list[str]]:
    """Draw about `size` bytes of text in lists of lines, every part of the corpus equally likely."""
    draw = random.Random(seed)
    kept: list[tuple[float, int, int, list[str]]] = []
    total = held = left_out = 0
    for number, (lines, runs) in enumerate(_parts(corpus)):
        left_out += runs
        if not any(map(str.strip, lines)):
            continue
        width = sum(len(line.encode()) + 1 for line in lines)
        total, held = total + width, held + width
        # Each part draws a lot; those with the highest are given up as soon as there is too much.
        heapq.heappush(kept, (-draw.random(), number, width, lines))
        while held > size and len(kept) > 1:
            held -= heapq.heappop(kept)[2]
    if left_out and not kept:
        what = f"is data rather than words, {LONG_WORD:,} characters or more without a blank"
        raise KeelError(f"{corpus.paths} {what}: look whether blanks were lost")
    if left_out:
        what = f"{left_out:,} characters in words of {LONG_WORD:,} or more are left out of what pieces are learned from"
        note(on_event, f"{what}: are blanks missing? (keel check names the first)")
    if not kept:
        raise KeelError(f"{corpus.paths} holds no text: there is nothing to learn a tokenizer from")
    part = "all" if held == total else f"a sample (seed {seed}, {held / 1e6:.1f} MB) of"
    note(on_event, f"the tokenizer is learned from {part} {total / 1e6:.1f} MB of text")
    return [lines for _, _, _, lines in sorted(kept, key=lambda item: item[1])]


def _parts(corpus: Corpus) -> Iterator[tuple[list[str], int]]:
    """Lines of text, and how many characters were no words of theirs."""
    lines: list[str] = []
    size = runs = 0
    for block in corpus.blocks():
        for _, part in cut_text(block.text, PART):
            words, found = NO_WORD.subn(" ", part)
            runs += len(part) - len(words) + found
            lines += words.split("\n")
            size += len(part)
            if size >= PART:
                yield lines, runs
                lines, size, runs = [], 0, 0
    if lines:
        yield lines, runs
