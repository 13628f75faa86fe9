"""Likelihood of given texts after given contexts: the basis of zero-shot evaluation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note
from keel.nn.inference_loop import eval_mode, length_batches
from keel.systems.capabilities import CausalLM

TOKENS_PER_BATCH = 16_384
"""Tokens per batch, padding included."""
SCORED_PER_BATCH = 512
"""Positions per batch, about, at which the whole vocabulary is scored."""


@runtime_checkable
class ParallelScoring(Protocol):
    """A model that scores many positions of a text in one forward pass; others are read token by token."""

    def logits_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits [positions, vocab_size] of the token after each position of `ids` [batch, time]; positions index the
        flattened batch, and what follows them is not looked at."""
        ...


@runtime_checkable
class TargetScoring(Protocol):
    """A model that looks up the probability of one next token without computing those of the whole vocabulary."""

    def log_probs_of(self, targets: Tensor, ids: Tensor, positions: Tensor) -> Tensor:
        """log p [positions] of each target as the token after its position, positions as in `ParallelScoring`."""
        ...


@dataclass(frozen=True)
class ScoredText:
    """Ids of a context, and of the text to score after it."""

    context: list[int]
    text: list[int]


@dataclass(frozen=True)
class Likelihood:
    """Likelihood of a text after its context."""

    ids: list[int]
    log_probs: np.ndarray
    """[ids] log p of each token given all before it."""
    top_ids: np.ndarray
    """[ids] most probable token at each position."""
    top_log_probs: np.ndarray
    """[ids] log p of that token."""

    @property
    def log_prob(self) -> float:
        """log p of the whole text."""
        return float(self.log_probs.sum())

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding would generate this text."""
        return self.top_ids.tolist() == self.ids


def encode_continuations(tokenizer: Tokenizer, contexts: Sequence[str], texts: Sequence[str]) -> list[ScoredText]:
    """Encode each text jointly with its context, so that whitespace between them belongs to the text."""
    alone = tokenizer.encode_many(list(contexts))
    whole = tokenizer.encode_many([context + text for context, text in zip(contexts, texts, strict=True)])
    found: list[ScoredText] = []
    for before, ids, text in zip(alone, whole, texts, strict=True):
        pairs = enumerate(zip(before, ids, strict=False))
        shared = next((position for position, (one, other) in pairs if one != other), min(len(before), len(ids)))
        if shared == len(ids):
            raise UsageError(f"{text!r:.80} has no token to score: give a text")
        found.append(ScoredText(ids[:shared], ids[shared:]))
    return found


def continuation_likelihoods(
    model: CausalLM, questions: Sequence[ScoredText], *, on_event: OnEvent = ignore
) -> list[Likelihood]:
    """Likelihood of each text after its context; contexts that exceed the model's are truncated on the left."""
    found = _score_texts(model, questions, _score, on_event)
    return [
        Likelihood(question.text, given, top.astype(np.int64), highest)
        for question, (given, top, highest) in zip(questions, found, strict=True)
    ]


def continuation_log_probs(
    model: CausalLM, questions: Sequence[ScoredText], *, on_event: OnEvent = ignore
) -> np.ndarray:
    """[texts] log p of each text after its context, as in `continuation_likelihoods`."""
    score = _look_up if isinstance(model, TargetScoring) else _score
    return np.array([each[0].sum() for each in _score_texts(model, questions, score, on_event)])


Score = Callable[[Any, Tensor, Tensor, Tensor], np.ndarray]
"""Scores of a model for ids [batch, time], positions and targets: [values, positions], log p of the targets first."""


@torch.no_grad()
def _score_texts(model: CausalLM, questions: Sequence[ScoredText], score: Score, on_event: OnEvent) -> list[np.ndarray]:
    """[values, tokens] of each text."""
    limit = model.max_context
    inputs = [[model.bos_id, *question.context, *question.text[:-1]] for question in questions]
    sizes = np.array([len(question.text) for question in questions], np.int64)
    if limit is not None:
        if (longest := sizes.max(initial=0)) > limit:
            raise UsageError(f"a text of {longest} tokens exceeds the model's context of {limit}: shorten it")
        if cut := sum(len(ids) > limit for ids in inputs):
            note(on_event, f"{cut:,} of {len(inputs):,} contexts exceed {limit} tokens: truncated on the left")
        inputs = [ids[-limit:] for ids in inputs]
    found: dict[int, np.ndarray] = {}
    lengths = np.array([*map(len, inputs)], np.int64)
    for similar in length_batches(lengths, SCORED_PER_BATCH, TOKENS_PER_BATCH):
        borders = np.flatnonzero(np.diff(sizes[similar].cumsum() // SCORED_PER_BATCH)) + 1
        for batch in np.split(similar, borders):
            ids = TokenBatch.pad([inputs[index] for index in batch]).ids
            ends = ids.shape[1] * np.arange(len(batch)) + lengths[batch]
            positions = np.concatenate(
                [np.arange(end - size, end) for end, size in zip(ends, sizes[batch], strict=True)]
            )
            targets = torch.tensor([id for index in batch for id in questions[index].text])
            with eval_mode(model):
                scored = score(model, ids, torch.from_numpy(positions), targets)
            found |= zip(batch.tolist(), np.split(scored, sizes[batch].cumsum()[:-1], axis=1), strict=True)
    return [found[index] for index in range(len(inputs))]


def _look_up(model: TargetScoring, ids: Tensor, positions: Tensor, targets: Tensor) -> np.ndarray:
    """[1, positions] log p of the target after each position."""
    return model.log_probs_of(targets, ids, positions).double().cpu().numpy()[None]


def _score(model: CausalLM, ids: Tensor, positions: Tensor, targets: Tensor) -> np.ndarray:
    """[3, positions] log p of the target after each position, the most probable id, and its log p."""
    found = np.empty((3, len(positions)))
    for chosen, logits in _logits(model, ids, positions):
        log_probs = logits.double().log_softmax(1)
        highest, top = log_probs.max(1)
        given = log_probs.gather(1, targets[chosen, None].to(logits.device))[:, 0]
        found[:, chosen.numpy()] = torch.stack([given, top.double(), highest]).cpu().numpy()
    return found


def _logits(model: CausalLM, ids: Tensor, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits after these positions with their indices, in parts."""
    if isinstance(model, ParallelScoring):
        yield torch.arange(len(positions)), model.logits_at(ids, positions)
        return
    state = model.new_state(len(ids))
    row, time = positions // ids.shape[1], positions % ids.shape[1]
    for step in range(ids.shape[1]):
        logits, state = model.step(ids[:, step : step + 1], state)
        chosen = (time == step).nonzero()[:, 0]
        if len(chosen):
            yield chosen, logits[row[chosen].to(logits.device)]
