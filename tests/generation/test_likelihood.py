"""A text is as likely as its words are one after the other, however many texts are asked about at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import keel
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.generation.likelihood import ParallelScoring, ScoredText, asked, likelihoods
from keel.generation.next_token import NextTokenModel

TINY: dict[str, dict[str, Any]] = {
    "ngram": {"order": 3},
    "nnlm": {"width": 8, "hidden": 8, "order": 3, "chunk_length": 5, "steps": 4, "vocabulary": 60},
    "rnn": {"width": 8, "bidirectional": True, "bptt": 8, "batch": 8, "steps": 4, "vocabulary": 60},
    "ulmfit": {"width": 8, "hidden": 12, "bptt": 8, "batch": 8, "steps": 4, "vocabulary": 60},
    "gpt": {"layers": 2, "width": 16, "head_dim": 8, "max_positions": 32, "length": 32, "steps": 4, "vocabulary": 300},
}
CONTEXTS = ["The sailor", "Around noon, the baker burns a", ""]
TEXTS = [" repairs the boat.", " cake", "The judge"]


class Slow:
    """The same writer, which can only be asked id by id."""

    def __init__(self, writer: NextTokenModel, longest: int | None = None) -> None:
        self.opening, self.closing, self.begin, self.next = writer.opening, writer.closing, writer.begin, writer.next
        self.longest = longest


def by_hand(writer: NextTokenModel, context: list[int], text: list[int]) -> tuple[list[float], list[bool]]:
    state, read = writer.begin(1), [writer.opening, *context]
    chances, likeliest = [], []
    with torch.no_grad():
        for number in text:
            scores, state = writer.next(torch.tensor([read]), state)
            chances.append(scores[0].double().log_softmax(0)[number].item())
            likeliest.append(int(scores[0].argmax()) == number)
            read = [number]
    return chances, likeliest


@pytest.mark.parametrize("name", TINY)
def test_a_text_is_as_likely_as_its_words_one_after_the_other(
    name: str, english_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = keel.pretrain(name, english_corpus, out=tmp_path / "m", device="cpu", **TINY[name])
    assert model.objective is not None
    writer = model.objective.eval()
    assert isinstance(writer, NextTokenModel)
    assert isinstance(writer, ParallelScoring)
    questions = asked(model.tokenizer, CONTEXTS, TEXTS)
    found = likelihoods(writer, questions)
    for question, likelihood in zip(questions, found, strict=True):
        chances, likeliest = by_hand(writer, question.context, question.text)
        assert likelihood.chances == pytest.approx(chances, rel=1e-5)
        assert (likelihood.likeliest == question.text).tolist() == likeliest
        assert likelihood.taken == all(likeliest)
        assert (likelihood.highest >= likelihood.chances).all()
        assert likelihood.total == pytest.approx(sum(chances), rel=1e-5)
    monkeypatch.setattr("keel.generation.likelihood.READ", 1)
    for other in (likelihoods(writer, questions), likelihoods(Slow(writer), questions)):
        for one, same in zip(found, other, strict=True):
            np.testing.assert_allclose(one.chances, same.chances, rtol=1e-5)


class Echo:
    """After an id comes the next one, and what was read long ago does not matter."""

    opening, closing, longest = 0, None, 4
    read: list[list[int]]

    def begin(self, rows: int) -> None:
        return None

    def next(self, ids: Tensor, state: Any, record: Any = None) -> Any:
        raise AssertionError("all is foretold at once")

    def logits_at(self, ids: Tensor, places: Tensor) -> Tensor:
        self.read = ids.tolist()
        return 5.0 * torch.eye(10)[(ids.flatten()[places] + 1) % 10]


def test_contexts_longer_than_the_model_reads_are_cut_from_the_front_and_that_is_said() -> None:
    writer, said = Echo(), []
    questions = [ScoredText([1, 2, 3, 4, 5], [6, 7]), ScoredText([1], [2, 9])]
    found = likelihoods(writer, questions, on_event=lambda event: said.append(event["text"]))
    assert writer.read == [[3, 4, 5, 6], [0, 1, 2, 0]]
    assert said == ["1 of 2 contexts are longer than 4 tokens: cut from their front"]
    assert [each.likeliest.tolist() for each in found] == [[6, 7], [2, 3]]
    assert [each.taken for each in found] == [True, False]
    with pytest.raises(UsageError, match="a text of 5 tokens is longer than the 4 that the model reads: cut it"):
        likelihoods(writer, [ScoredText([], [1, 2, 3, 4, 5])])
    assert likelihoods(writer, []) == []


def test_pieces_are_those_of_the_whole_text() -> None:
    tokenizer = Tokenizer.from_words(["the", "sea", "is", "blue"])
    (question,) = asked(tokenizer, ["the sea"], [" is blue"])
    assert (len(question.context), len(question.text)) == (2, 2)
    (question,) = asked(tokenizer, ["the se"], ["a is"])  # no bound of the whole text's pieces
    assert question == ScoredText(tokenizer.encode("the").ids, tokenizer.encode("sea is").ids)
    with pytest.raises(UsageError, match="' ' has no word whose likelihood could be told"):
        asked(tokenizer, ["the sea"], [" "])
