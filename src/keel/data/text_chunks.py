"""Long texts in chunks, and many texts in groups: tokenization takes a hundred bytes or more per character."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_CHUNK = 1 << 17
"""Characters of a text that are tokenized at once."""
MAX_GROUP = 1 << 20
"""Characters of several texts that are tokenized at once."""
CUT = re.compile(r"(?<=\S)\s(?=\S)|(?<=[。！？；，：])(?=[\u4e00-\u9fff])")
"""Where tokenizers never look across: before a single whitespace character, after Chinese punctuation."""


class Chunk(NamedTuple):
    """A text or a part of one."""

    owner: int
    """Index of the text."""
    start: int
    """Where it begins in the text."""
    text: str


def are_small(texts: Sequence[str]) -> bool:
    """Whether texts can be tokenized at once."""
    return max(map(len, texts), default=0) <= MAX_CHUNK and sum(map(len, texts)) <= MAX_GROUP


def chunk_groups(texts: Sequence[str]) -> Iterator[list[Chunk]]:
    """All texts in order, in chunks of at most MAX_CHUNK characters, as groups of at most MAX_GROUP."""
    group: list[Chunk] = []
    size = 0
    for index, text in enumerate(texts):
        start = 0
        while start < len(text) or not start:
            end = _chunk_end(text, start)
            if group and size + end - start > MAX_GROUP:
                yield group
                group, size = [], 0
            group.append(Chunk(index, start, text[start:end]))
            size += end - start
            if end == len(text):
                break
            start = end
    if group:
        yield group


def _chunk_end(text: str, start: int) -> int:
    """The end of a chunk: the last place in its second half where a cut changes no token, else anywhere."""
    end = start + MAX_CHUNK
    if end >= len(text):
        return len(text)
    for tail in (1 << 10, MAX_CHUNK // 2):
        positions = [found.start() for found in CUT.finditer(text, end - tail, end)]
        if positions:
            return positions[-1]
    return end
