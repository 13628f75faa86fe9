"""Rows that are made all at once are those that a system would make one by one."""

import numpy as np
import pytest

from keel.data.input_windows import FlatTokens, build_packed_inputs, text_windows
from keel.data.tokenizer import Tokenizer
from keel.systems import SYSTEMS

TEXTS = [[7, 8, 9], [], [10], list(range(5, 40)), [11, 12], []]
OTHERS = [[5], [6, 7], [], [8] * 30, list(range(5, 25)), []]


def flat(texts: list[list[int]]) -> FlatTokens:
    return FlatTokens(
        np.array([number for text in texts for number in text], np.int32), np.array(list(map(len, texts)))
    )


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("name", ["bert", "word2vec"])
def test_rows_are_framed_as_one_by_one(name: str, pair: bool) -> None:
    system, tokenizer = SYSTEMS[name](), Tokenizer.from_words(f"word{number}" for number in range(40))
    found = build_packed_inputs(system, tokenizer, flat(TEXTS), flat(OTHERS) if pair else None, 20)
    parts = [text_windows(text, other if pair else None, 20) for text, other in zip(TEXTS, OTHERS, strict=True)]
    rows = [system.build_inputs(tokenizer, *part) for each in parts for part in each]
    assert found.window_counts.tolist() == list(map(len, parts))
    assert max(found.window_counts) > 1
    assert [found.ids[a:b].tolist() for a, b in zip(found.starts, found.starts[1:], strict=False)] == [
        row.ids for row in rows
    ]
    assert found.segments.tolist() == [segment for row in rows for segment in row.segments]
