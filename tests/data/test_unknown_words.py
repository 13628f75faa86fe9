"""Words that a vocabulary lacks have numbers, and do not fill the memory of a server."""

import pytest

from keel.data import unknown_words
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError


def test_old_words_are_given_up_and_recent_ones_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_words, "GENERATION_SIZE", 3)
    tokenizer = Tokenizer.from_words(["known"])
    seen: list[list[int]] = []
    for number in range(5):
        words = [f"a{number}", f"b{number}", f"c{number}", "known"]
        ids = tokenizer.encode_many([" ".join(words)], oov_ids=True)[0]
        assert [tokenizer.token_of(each) for each in ids] == words
        seen.append(ids[:3])
    assert len({number for ids in seen for number in ids}) == 15
    assert tokenizer.encode_many(["a4"], oov_ids=True)[0] == [seen[4][0]]  # the shelf before this one is still there
    with pytest.raises(KeelError, match="no token"):
        tokenizer.token_of(seen[0][0])
