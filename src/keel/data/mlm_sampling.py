"""Rows for a cloze test: stretches of text, alone or in pairs, and the tokens of them to hide.

All is drawn by number, in integer operations alone: a CPU and a GPU give the same rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from keel.data.documents import Documents
from keel.training.counter_rng import CounterRng


@dataclass(frozen=True, kw_only=True)
class SampledSpans:
    """Where the texts of a batch of rows stand in the corpus."""

    first: Tensor  # [batch] place of A's first token
    first_length: Tensor
    second: Tensor  # the same for B; without pairs of length 0
    second_length: Tensor
    not_next: Tensor | None

    @property
    def lengths(self) -> Tensor:
        return self.first_length + self.second_length + (2 if self.not_next is None else 3)

    def to_ids(
        self, data: Documents, length: int, whole_words: bool, marks: tuple[int, int, int, int]
    ) -> tuple[Tensor, Tensor]:
        """[batch, length] ids as [CLS] A [SEP] B [SEP] and padding, and whether each place starts a word."""
        cls, sep, _, pad = marks
        place = torch.arange(length, device=self.first.device)
        a, b = self.first_length[:, None], self.second_length[:, None]
        in_a = (place > 0) & (place <= a)
        in_b = (place > a + 1) & (place <= a + 1 + b)
        source = torch.where(in_a, self.first[:, None] + place - 1, self.second[:, None] + place - a - 2)
        source = torch.where(in_a | in_b, source, 0)
        closing = (place == a + 1) | (place == self.lengths[:, None] - 1)
        ids = torch.where(in_a | in_b, data.read(source), torch.where(closing, sep, pad))
        ids[:, 0] = cls
        starts_word = data.starts_word(source) if whole_words else torch.ones_like(in_a)
        return ids, starts_word | (place == 1) | (place == a + 2) | ~(in_a | in_b)


def sample_spans(data: Documents, draw: CounterRng, rows: Tensor, room: int) -> SampledSpans:
    """One stretch of a document for each row; an epoch reads every token at least once."""
    start, stop, _ = data.window_around(data.epoch_windows(draw, rows, room), room)
    none = torch.zeros_like(start)
    length = torch.clamp(stop - start, max=room)
    return SampledSpans(first=start, first_length=length, second=none, second_length=none, not_next=None)


def sample_pairs(data: Documents, draw: CounterRng, rows: Tensor, room: int) -> SampledSpans:
    """A stretch cut in two between sentences; for half of the rows the second part is from another document instead."""
    start, stop, document = data.window_around(data.epoch_windows(draw, rows, room), room)
    stop = torch.minimum(stop, start + room)
    # A is cut where a sentence starts inside the stretch; a stretch of one sentence is cut in the middle.
    sentence = torch.searchsorted(data.starts, start, right=True)
    inside = torch.searchsorted(data.starts, stop) - sentence
    cut = data.starts[sentence + draw.randint("cut", rows, inside.clamp(min=1)[:, None]).squeeze(1)]
    cut = torch.where(inside > 0, cut, (start + stop + 1) // 2)
    unrelated = draw.randint("next", rows, 2).squeeze(1)
    # Any token outside A's document: count on from that document's end, around the corpus.
    size = data.ends[document] - data.tokens_before(document)
    elsewhere = draw.randint("elsewhere", rows, (data.size - size)[:, None]).squeeze(1)
    # The false B is no longer than the true one, or a row's length would tell them apart.
    length = stop - cut
    other, other_stop, _ = data.window_around((data.ends[document] + elsewhere) % data.size, length)
    second = torch.where(unrelated == 1, other, cut)
    second_stop = torch.where(unrelated == 1, torch.minimum(other_stop, other + length), stop)
    return SampledSpans(
        first=start, first_length=cut - start, second=second, second_length=second_stop - second, not_next=unrelated
    )


def sample_masked_positions(
    draw: CounterRng,
    rows: Tensor,
    text: SampledSpans,
    starts_word: Tensor,
    *,
    share: float,
    slots: int,
    whole_words: bool,
) -> tuple[Tensor, Tensor]:
    """[batch, slots] places to hide, that share of each text, in the order drawn; and 1 for each that counts."""
    length = starts_word.shape[1]
    place = torch.arange(length, device=rows.device).expand_as(starts_word)
    marks = (place == 0) | (place == text.first_length[:, None] + 1) | (place >= text.lengths[:, None] - 1)
    wanted = ((text.first_length + text.second_length) * share + 0.5).long().clamp(1, slots)[:, None]
    word = place
    key = draw.random_bits("mask", rows, length)
    if whole_words:
        # Pieces of a word share one key, drawn at its first piece, so that they are chosen together and in order.
        word = starts_word.long().cumsum(1) - 1
        key = key.gather(1, word)
    key = key >> 12 << 12 | place
    key = torch.where(marks, (2**51 - 1 << 12) | place, key)
    order = key.topk(min(slots + 1, length), dim=1, largest=False, sorted=True).indices
    rank = torch.arange(slots, device=rows.device)
    if not whole_words:
        return order[:, :slots], (rank < wanted).float()
    # The first word is hidden whole, as far as slots reach; of the others one is left out rather than hidden in part.
    words = word.gather(1, order)
    first = words == words[:, :1]
    wanted = torch.maximum(wanted, first.sum(1, keepdim=True).clamp(max=slots))
    torn = (words == words.gather(1, wanted)) & ~first
    return order[:, :slots], ((rank < wanted) & ~torn[:, :-1]).float()
