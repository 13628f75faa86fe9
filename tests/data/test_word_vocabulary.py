"""A vocabulary of words is counted over all the text, and says what it left out."""

import numpy as np
import pytest
from tokenizers import models, trainers

from keel.data import tokenizer_rules
from keel.data.corpus import Corpus
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError

TEXT = ["The cat sat, the DOG sat. Éa", "the cat 数学 ran"] * 3 + ["once only"]


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.token_of(number) for number in range(len(tokenizer))]


@pytest.mark.parametrize("size", [32, 30_000])
def test_words_and_their_order_are_those_of_the_librarys_trainer(size: int) -> None:
    texts = [*TEXT, " ".join(f"w{number}" for number in range(50))]
    model = models.WordLevel(unk_token="[UNK]")
    peer = tokenizer_rules.make("words", model, lowercase=True, accents=False)
    specials = list(tokenizer_rules.SPECIALS.values())
    peer.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=size, special_tokens=specials))
    assert Tokenizer.train(Corpus.of(texts), kind="words", size=size)._inner.get_vocab() == peer.get_vocab()


def test_rare_words_are_left_out_and_reported() -> None:
    events: list[dict] = []
    tokenizer = Tokenizer.train(Corpus.of(TEXT), kind="words", min_count=6, on_event=events.append)
    assert vocabulary(tokenizer)[5:] == ["the", "cat", "sat"]
    assert tokenizer.encode_many(["The cat ran"])[0][2] == tokenizer.unknown_id
    assert "3 words (12 distinct ones, with a count of 6 or more;" in events[-1]["text"]
    assert "change with min_count" in events[-1]["text"]


def test_all_text_is_read_whatever_the_sample() -> None:
    corpus = Corpus.of([f"word{number} " * 3000 for number in range(40)])
    tokenizer = Tokenizer.train(corpus, kind="words", sample=1000)
    assert len(tokenizer) == 45


def test_nothing_often_enough_or_nothing_at_all_is_one_sentence() -> None:
    with pytest.raises(KeelError, match=r"no word of .* has a count of 50 or more: .* min_count=1"):
        Tokenizer.train(Corpus.of(TEXT), kind="words", min_count=50)
    with pytest.raises(KeelError, match="holds no text"):
        Tokenizer.train(Corpus.of(["", " \n "]), kind="words")
    with pytest.raises(KeelError, match="words vocabulary of 20 is too small: use at least 32"):
        Tokenizer.train(Corpus.of(TEXT), kind="words", size=20)


def test_one_word_and_a_very_long_one_are_harmless() -> None:
    events: list[dict[str, str]] = []
    tokenizer = Tokenizer.train(Corpus.of(["word " * 9, "x" * 100_000]), kind="words", on_event=events.append)
    assert "1 word has more than 1,000 bytes, encoded as [UNK]" in events[0]["text"]
    assert "1 word (all of 1 distinct ones" in events[1]["text"]
    assert "90.0% of 10 tokens" in events[1]["text"]
    with pytest.raises(KeelError, match=r"no word of .* has 1,000 bytes or fewer: check whether spaces were lost"):
        Tokenizer.train(Corpus.of(["x" * 2_000_000]), kind="words")
    assert vocabulary(tokenizer)[5:] == ["word"]
    assert tokenizer.encode_many(["x" * 100_000 + " word"]) == [[tokenizer.unknown_id, 5]]


def test_other_kinds_heed_the_count_too() -> None:
    tokenizer = Tokenizer.train(Corpus.of(["aaa b"] * 3), kind="characters", min_count=4)
    assert vocabulary(tokenizer)[5:] == ["a"]


def test_many_texts_are_encoded_as_few_are() -> None:
    tokenizer = Tokenizer.train(Corpus.of(TEXT), kind="words")
    slow, lengths = tokenizer.encode_flat([*TEXT, "a [MASK] b", "[UNK]"])
    assert tokenizer.compile()
    fast, sizes = tokenizer.encode_flat([*TEXT, "a [MASK] b", "[UNK]"])
    assert np.array_equal(slow, fast)
    assert np.array_equal(lengths, sizes)
