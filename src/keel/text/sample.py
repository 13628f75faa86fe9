"""A seeded sample of a corpus, to learn a tokenizer from."""

import heapq
import random
import re
from collections.abc import Iterator

from keel.errors import KeelError
from keel.events import OnEvent, note
from keel.text.corpus import Corpus, cut_text

PART = 1 << 16
"""Characters that are drawn together."""

NO_WORD = re.compile(r"[^\s\u3000-\u9fff]{1000,}")
"""Runs that are data rather than words: learning from them would take memory for nothing."""


def draw_sample(corpus: Corpus, size: int, seed: int, on_event: OnEvent) -> list[list[str]]:
    """Draw about `size` bytes of text in lists of lines, every part of the corpus equally likely."""
    draw = random.Random(seed)
    kept: list[tuple[float, int, int, list[str]]] = []
    total = held = 0
    for number, lines in enumerate(_parts(corpus)):
        width = sum(len(line.encode()) + 1 for line in lines)
        total, held = total + width, held + width
        # Each part draws a lot; those with the highest are given up as soon as there is too much.
        heapq.heappush(kept, (-draw.random(), number, width, lines))
        while held > size and len(kept) > 1:
            held -= heapq.heappop(kept)[2]
    if not kept:
        raise KeelError(f"{corpus.paths} holds no text: there is nothing to learn a tokenizer from")
    part = "all" if held == total else f"a sample (seed {seed}, {held / 1e6:.1f} MB) of"
    note(on_event, f"the tokenizer is learned from {part} {total / 1e6:.1f} MB of text")
    return [lines for _, _, _, lines in sorted(kept, key=lambda item: item[1])]


def _parts(corpus: Corpus) -> Iterator[list[str]]:
    lines: list[str] = []
    size = 0
    for block in corpus.blocks():
        for _, part in cut_text(block.text, PART):
            lines += NO_WORD.sub(" ", part).split("\n")
            size += len(part)
            if size >= PART:
                yield lines
                lines, size = [], 0
    if lines:
        yield lines
