"""Seeded sample of a corpus, for tokenizer training."""

import heapq
import random
import re
from collections.abc import Iterator

from keel.data.corpus import Corpus, cut_text
from keel.errors import KeelError
from keel.events import OnEvent, note

PART = 1 << 16
"""Characters that are sampled together."""

LONG_WORD = 1000
NO_WORD = re.compile(rf"(?<![^\s\u3000-\u9fff])[^\s\u3000-\u9fff]{{{LONG_WORD},}}")
"""Character runs that are data rather than words, which would only cost memory."""


def sample_corpus(corpus: Corpus, size: int, seed: int, on_event: OnEvent) -> list[list[str]]:
    """Sample about `size` bytes of text, as lists of lines, uniformly over the corpus."""
    rng = random.Random(seed)
    kept: list[tuple[float, int, int, list[str]]] = []
    total = held = left_out = 0
    for number, (lines, runs) in enumerate(_parts(corpus)):
        left_out += runs
        if not any(map(str.strip, lines)):
            continue
        width = sum(len(line.encode()) + 1 for line in lines)
        total, held = total + width, held + width
        # Reservoir sampling by random keys: those with the highest keys are dropped when there is too much.
        heapq.heappush(kept, (-rng.random(), number, width, lines))
        while held > size and len(kept) > 1:
            held -= heapq.heappop(kept)[2]
    if left_out and not kept:
        what = f"has no whitespace for {LONG_WORD:,} characters or more"
        raise KeelError(f"{corpus.paths} {what}: check whether spaces were lost")
    if left_out:
        what = f"tokenizer training skips {left_out:,} characters in words of {LONG_WORD:,} characters or more"
        note(on_event, f"{what}: is whitespace missing? (keel check names the first)")
    if not kept:
        raise KeelError(f"{corpus.paths} holds no text to train a tokenizer on: give it more text")
    part = "all" if held == total else f"a sample (seed {seed}, {held / 1e6:.1f} MB) of"
    note(on_event, f"tokenizer training on {part} {total / 1e6:.1f} MB of text")
    return [lines for _, _, _, lines in sorted(kept, key=lambda item: item[1])]


def _parts(corpus: Corpus) -> Iterator[tuple[list[str], int]]:
    """Lines of text, and the number of characters removed as over-long words."""
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
