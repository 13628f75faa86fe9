import random

import numpy as np
import pytest

from keel.data import text_chunks
from keel.data.corpus import Corpus
from keel.data.text_chunks import MAX_CHUNK, MAX_GROUP, chunk_groups
from keel.data.tokenizer import Tokenizer

ENGLISH = "The harbour isn't quiet: 3,000 boats, gulls (and \t men)  wait.\nA second line — it's long! "
CHINESE = "数学是利用符号语言研究数量、结构以及空间的学科。北京大学在一八九八年成立，很有名！The end "


def test_chunks_and_groups_are_bounded_and_complete() -> None:
    texts = ["", "a b" * MAX_CHUNK, "x" * (MAX_CHUNK + 5), "short", *["word " * 20_000] * 30]
    groups = list(chunk_groups(texts))
    assert len(groups) > 2
    for group in groups:
        assert max(len(chunk.text) for chunk in group) <= MAX_CHUNK
        assert sum(len(chunk.text) for chunk in group) <= MAX_GROUP
    joined = [""] * len(texts)
    for chunk in (chunk for group in groups for chunk in group):
        assert chunk.start == len(joined[chunk.owner])
        joined[chunk.owner] += chunk.text
    assert joined == texts


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "words", "characters"])
@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_a_text_in_chunks_has_the_same_tokens(kind, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled = random.Random(0)
    long = "".join(text[: shuffled.randrange(40, len(text))] + " " for _ in range(40))
    tokenizer = Tokenizer.train(Corpus.of([text, long]), kind=kind, size=400, min_count=1)
    whole, (ids, lengths) = tokenizer.encode_with_offsets([long, text]), tokenizer.encode_flat([long, text])
    monkeypatch.setattr(text_chunks, "MAX_CHUNK", 150)
    monkeypatch.setattr(text_chunks, "MAX_GROUP", 400)
    assert len(list(chunk_groups([long, text]))) > 3
    assert tokenizer.encode_with_offsets([long, text]) == whole
    chunks, counts = tokenizer.encode_flat([long, text])
    np.testing.assert_array_equal(chunks, ids)
    np.testing.assert_array_equal(counts, lengths)
