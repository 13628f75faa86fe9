"""How likely given texts are after given others: what a language model is asked by without being taught anything."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, ignore, note
from keel.generation.next_token import NextTokenModel

READ = 16_384
"""Ids that are read at once, padding counted."""
FORETOLD = 512
"""Places at which all words are scored at once."""


@runtime_checkable
class ParallelScoring(Protocol):
    """A writer that knows how to foretell many places of a text at once; any other is asked id by id."""

    def logits_at(self, ids: Tensor, places: Tensor) -> Tensor:
        """[places, vocabulary] scores, as a softmax takes them, of what follows these places of rows [rows, time] that
        are read from their start; places count through all rows, and what stands after them is not looked at."""
        ...


@dataclass(frozen=True)
class ScoredText:
    """Ids that are given, and those whose chances are asked for."""

    context: list[int]
    text: list[int]


@dataclass(frozen=True)
class Likelihood:
    """How likely a text is after its context."""

    ids: list[int]
    chances: np.ndarray
    """[ids] log p of each of its ids, given all before it."""
    likeliest: np.ndarray
    """[ids] which would have been likeliest there."""
    highest: np.ndarray
    """[ids] log p of that one."""

    @property
    def total(self) -> float:
        """log p of all of it."""
        return float(self.chances.sum())

    @property
    def taken(self) -> bool:
        """Whether who always takes the likeliest would write just this."""
        return self.likeliest.tolist() == self.ids


def asked(tokenizer: Tokenizer, contexts: Sequence[str], texts: Sequence[str]) -> list[ScoredText]:
    """Texts after their contexts as ids, cut into pieces as both together are: a blank before a text is its own."""
    alone = tokenizer.encode_many(list(contexts))
    whole = tokenizer.encode_many([context + text for context, text in zip(contexts, texts, strict=True)])
    found: list[ScoredText] = []
    for before, ids, text in zip(alone, whole, texts, strict=True):
        pairs = zip(before, ids, strict=False)
        shared = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(before), len(ids)))
        if shared == len(ids):
            raise UsageError(f"{text!r:.80} has no word whose likelihood could be told: give a text")
        found.append(ScoredText(ids[:shared], ids[shared:]))
    return found


@torch.no_grad()
def likelihoods(
    writer: NextTokenModel, questions: Sequence[ScoredText], *, on_event: OnEvent = ignore
) -> list[Likelihood]:
    """How likely each text is after its context. What is longer than the writer can read is cut from the front."""
    longest = writer.max_context
    rows = [[writer.bos_id, *question.context, *question.text[:-1]] for question in questions]
    sizes = [len(question.text) for question in questions]
    if longest is not None:
        if sizes and max(sizes) > longest:
            raise UsageError(f"a text of {max(sizes)} tokens is longer than the {longest} that the model reads: cut it")
        cut = sum(len(row) > longest for row in rows)
        if cut:
            note(on_event, f"{cut:,} of {len(rows):,} contexts are longer than {longest} tokens: cut from their front")
        rows = [row[-longest:] for row in rows]
    found: list[Likelihood | None] = [None] * len(rows)
    for numbers in _batches(rows, sizes):
        time = max(len(rows[number]) for number in numbers)
        ids = torch.tensor([rows[number] + [0] * (time - len(rows[number])) for number in numbers])
        ends = [time * place + len(rows[number]) for place, number in enumerate(numbers)]
        spans = [range(end - sizes[number], end) for end, number in zip(ends, numbers, strict=True)]
        places = torch.tensor([place for span in spans for place in span])
        words = torch.tensor([word for number in numbers for word in questions[number].text])
        chances = _chances(writer, ids, places, words)
        cuts = np.cumsum([sizes[number] for number in numbers])[:-1]
        for number, part in zip(numbers, np.split(chances, cuts, axis=1), strict=True):
            found[number] = Likelihood(questions[number].text, part[0], part[1].astype(np.int64), part[2])
    return [each for each in found if each is not None]


def _batches(rows: list[list[int]], sizes: list[int]) -> Iterator[list[int]]:
    """The numbers of rows to read at once, those of like length together, the longest first."""
    batch: list[int] = []
    places = 0
    for number in sorted(range(len(rows)), key=lambda number: -len(rows[number])):
        places += sizes[number]
        if batch and (len(rows[batch[0]]) * (len(batch) + 1) > READ or places > FORETOLD):
            yield batch
            batch, places = [], sizes[number]
        batch.append(number)
    if batch:
        yield batch


def _chances(writer: NextTokenModel, ids: Tensor, places: Tensor, words: Tensor) -> np.ndarray:
    """[3, places] log p of the word that follows each place, the likeliest one, and its log p."""
    found = np.empty((3, len(places)))
    for chosen, scores in _scores(writer, ids, places):
        log_chances = scores.double().log_softmax(1)
        highest, likeliest = log_chances.max(1)
        given = log_chances.gather(1, words[chosen, None].to(scores.device))[:, 0]
        found[:, chosen.numpy()] = torch.stack([given, likeliest.double(), highest]).cpu().numpy()
    return found


def _scores(writer: NextTokenModel, ids: Tensor, places: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores of what follows some of these places, with their numbers, until all have been given."""
    if isinstance(writer, ParallelScoring):
        yield torch.arange(len(places)), writer.logits_at(ids, places)
        return
    state, (row, time) = writer.new_state(len(ids)), (places // ids.shape[1], places % ids.shape[1])
    for step in range(ids.shape[1]):
        scores, state = writer.step(ids[:, step : step + 1], state)
        chosen = (time == step).nonzero()[:, 0]
        if len(chosen):
            yield chosen, scores[row[chosen].to(scores.device)]
