"""Likelihoods equal those of token-by-token scoring, in any batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import keel
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.generation.likelihood import (
    ParallelScoring,
    ScoredText,
    continuation_likelihoods,
    continuation_log_probs,
    encode_continuations,
)
from keel.systems.capabilities import CausalLM

TINY: dict[str, dict[str, Any]] = {
    "ngram": {"order": 3},
    "nnlm": {"width": 8, "hidden": 8, "order": 3, "chunk_length": 5, "steps": 4, "vocabulary": 60},
    "rnn": {"width": 8, "bidirectional": True, "bptt": 8, "batch": 8, "steps": 4, "vocabulary": 60},
    "ulmfit": {"width": 8, "hidden_size": 12, "bptt": 8, "batch": 8, "steps": 4, "vocabulary": 60},
    "gpt": {
        "layers": 2,
        "width": 16,
        "head_dim": 8,
        "max_positions": 32,
        "sequence_length": 32,
        "steps": 4,
        "vocabulary": 300,
    },
}
CONTEXTS = ["The sailor", "Around noon, the baker burns a", ""]
TEXTS = [" repairs the boat.", " cake", "The judge"]


class Slow:
    """The same model without parallel scoring."""

    def __init__(self, model: CausalLM, max_context: int | None = None) -> None:
        self.bos_id, self.eos_id, self.new_state, self.step = (
            model.bos_id,
            model.eos_id,
            model.new_state,
            model.step,
        )
        self.max_context = max_context


def by_hand(model: CausalLM, context: list[int], text: list[int]) -> tuple[list[float], list[bool]]:
    state, read = model.new_state(1), [model.bos_id, *context]
    log_probs, most_probable = [], []
    with torch.no_grad():
        for number in text:
            scores, state = model.step(torch.tensor([read]), state)
            log_probs.append(scores[0].double().log_softmax(0)[number].item())
            most_probable.append(int(scores[0].argmax()) == number)
            read = [number]
    return log_probs, most_probable


@pytest.mark.parametrize("name", TINY)
def test_likelihood_equals_token_by_token_scoring(
    name: str, english_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = keel.pretrain(name, english_corpus, out=tmp_path / "m", device="cpu", **TINY[name])
    assert model.objective is not None
    language_model = model.objective.eval()
    assert isinstance(language_model, CausalLM)
    assert isinstance(language_model, ParallelScoring)
    questions = encode_continuations(model.tokenizer, CONTEXTS, TEXTS)
    found = continuation_likelihoods(language_model, questions)
    for question, likelihood in zip(questions, found, strict=True):
        log_probs, most_probable = by_hand(language_model, question.context, question.text)
        assert likelihood.log_probs == pytest.approx(log_probs, rel=1e-5)
        assert (likelihood.top_ids == question.text).tolist() == most_probable
        assert likelihood.is_greedy == all(most_probable)
        assert (likelihood.top_log_probs >= likelihood.log_probs).all()
        assert likelihood.log_prob == pytest.approx(sum(log_probs), rel=1e-5)
    totals = [likelihood.log_prob for likelihood in found]
    assert continuation_log_probs(language_model, questions) == pytest.approx(totals, rel=1e-5)
    monkeypatch.setattr("keel.generation.likelihood.TOKENS_PER_BATCH", 1)
    for other in (
        continuation_likelihoods(language_model, questions),
        continuation_likelihoods(Slow(language_model), questions),
    ):
        for one, same in zip(found, other, strict=True):
            np.testing.assert_allclose(one.log_probs, same.log_probs, rtol=1e-5)


class Echo:
    """Predicts id + 1."""

    bos_id, eos_id, max_context = 0, None, 4
    read: list[list[int]]

    def new_state(self, batch_size: int) -> None:
        return None

    def step(self, ids: Tensor, state: Any, record: Any = None) -> Any:
        raise AssertionError("scored in parallel")

    def logits_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        self.read = ids.tolist()
        return 5.0 * torch.eye(10)[(ids.flatten()[positions] + 1) % 10]


def test_long_contexts_are_truncated_on_the_left() -> None:
    model, notes = Echo(), []
    questions = [ScoredText([1, 2, 3, 4, 5], [6, 7]), ScoredText([1], [2, 9])]
    found = continuation_likelihoods(model, questions, on_event=lambda event: notes.append(event["text"]))
    assert model.read == [[3, 4, 5, 6], [0, 1, 2, 0]]
    assert notes == ["1 of 2 contexts exceed 4 tokens: truncated on the left"]
    assert [each.top_ids.tolist() for each in found] == [[6, 7], [2, 3]]
    assert [each.is_greedy for each in found] == [True, False]
    with pytest.raises(UsageError, match="a text of 5 tokens exceeds the model's context of 4"):
        continuation_likelihoods(model, [ScoredText([], [1, 2, 3, 4, 5])])
    assert continuation_likelihoods(model, []) == []


def test_context_and_text_are_encoded_jointly() -> None:
    tokenizer = Tokenizer.from_words(["the", "sea", "is", "blue"])
    (question,) = encode_continuations(tokenizer, ["the sea"], [" is blue"])
    assert (len(question.context), len(question.text)) == (2, 2)
    (question,) = encode_continuations(tokenizer, ["the se"], ["a is"])  # not a token boundary of the whole text
    assert question == ScoredText(tokenizer.encode("the").ids, tokenizer.encode("sea is").ids)
    with pytest.raises(UsageError, match="' ' has no token to score"):
        encode_continuations(tokenizer, ["the sea"], [" "])


def test_an_ngram_looks_up_single_words(english_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = keel.pretrain("ngram", english_corpus, out=tmp_path / "m", device="cpu", order=4)
    objective = model.objective
    assert isinstance(objective, CausalLM)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, len(model.tokenizer), 6).tolist() for _ in range(40)]
    texts += [model.tokenizer.encode(line).ids[:6] for line in english_corpus.read_text().splitlines()[:40] if line]
    questions = [ScoredText(text[:-3], text[-3:]) for text in texts if len(text) > 3]
    wanted = [each.log_prob for each in continuation_likelihoods(objective, questions)]
    monkeypatch.setattr(type(objective), "logits_at", None)  # the whole vocabulary is not needed
    monkeypatch.setattr(type(objective), "step", None)
    np.testing.assert_allclose(continuation_log_probs(objective, questions), wanted, rtol=1e-5)
