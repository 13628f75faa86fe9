"""Sampling for masked language models: spans of text, alone or in pairs, and the positions to mask.

All is sampled by example index, in integer operations only: CPU and GPU give the same batches.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from keel.data.documents import Documents
from keel.training.counter_rng import CounterRng

PairObjective = Literal["none", "segments", "nsp", "sop"]
SPAN_P = 0.2
"""Parameter p of the geometric distribution of the lengths of masked spans (SpanBERT)."""
MILLION = 1_000_000
"""Masking rates are integers in millionths here."""


@dataclass(frozen=True, kw_only=True)
class SampledSpans:
    """Where texts A and B of each example lie in the corpus."""

    first: Tensor  # [batch] index of A's first token
    first_length: Tensor
    second: Tensor  # the same for B; length 0 without pairs
    second_length: Tensor
    paired: bool = True
    """Whether there are pairs of texts."""
    not_next: Tensor | None = None
    """[batch] 0: B follows A, 1: it does not; None if pairs have no label."""

    @property
    def lengths(self) -> Tensor:
        """[batch] lengths with special tokens."""
        return self.first_length + self.second_length + (3 if self.paired else 2)

    def locate(self, length: int) -> tuple[Tensor, Tensor]:
        """[batch, length] index in the corpus of the token at each position, 0 for special tokens and padding, and
        whether the token is text."""
        position = torch.arange(length, device=self.first.device)
        a, b = self.first_length[:, None], self.second_length[:, None]
        in_a = (position > 0) & (position <= a)
        in_b = (position > a + 1) & (position <= a + 1 + b)
        source = torch.where(in_a, self.first[:, None] + position - 1, self.second[:, None] + position - a - 2)
        return torch.where(in_a | in_b, source, 0), in_a | in_b

    def to_ids(
        self, data: Documents, source: Tensor, in_text: Tensor, *, cls_id: int, sep_id: int, pad_id: int
    ) -> Tensor:
        """[batch, length] ids of the located tokens, as [CLS] A [SEP] B [SEP] and padding."""
        position = torch.arange(source.shape[1], device=source.device)
        is_sep = (position == self.first_length[:, None] + 1) | (position == self.lengths[:, None] - 1)
        ids = torch.where(in_text, data.read(source), torch.where(is_sep, sep_id, pad_id))
        ids[:, 0] = cls_id
        return ids

    def is_special(self, length: int) -> Tensor:
        """[batch, length] whether each position is a special token or padding."""
        position = torch.arange(length, device=self.first.device)
        return (position == 0) | (position == self.first_length[:, None] + 1) | (position >= self.lengths[:, None] - 1)

    def starts_with_bounds(self, starts: Tensor) -> Tensor:
        """[batch, length] where words start; also at special tokens and where a text starts."""
        position = torch.arange(starts.shape[1], device=starts.device)
        first = (position == 1) | (position == self.first_length[:, None] + 2)
        return starts | first | self.is_special(starts.shape[1])


def sample_spans(data: Documents, rng: CounterRng, examples: Tensor, length: int) -> SampledSpans:
    """One span of a document per example; an epoch covers every token at least once."""
    start, stop, _ = data.window_around(data.epoch_windows(rng, examples, length), length)
    zero = torch.zeros_like(start)
    return SampledSpans(
        first=start, first_length=torch.clamp(stop - start, max=length), second=zero, second_length=zero, paired=False
    )


def sample_pairs(
    data: Documents, rng: CounterRng, examples: Tensor, length: int, objective: PairObjective
) -> SampledSpans:
    """A span split in two at a sentence boundary; for half of the examples, B is from another document instead (nsp),
    or A and B are swapped (sop)."""
    start, stop, document = data.window_around(data.epoch_windows(rng, examples, length), length)
    stop = torch.minimum(stop, start + length)
    # A ends where a sentence starts inside the span; a span of one sentence is split in the middle.
    sentence = torch.searchsorted(data.starts, start, right=True)
    inside = torch.searchsorted(data.starts, stop) - sentence
    cut = data.starts[sentence + rng.randint("cut", examples, inside.clamp(min=1)[:, None]).squeeze(1)]
    cut = torch.where(inside > 0, cut, (start + stop + 1) // 2)
    if objective == "segments":
        return SampledSpans(first=start, first_length=cut - start, second=cut, second_length=stop - cut)
    not_next = rng.randint("next", examples, 2).squeeze(1)
    if objective == "sop":
        swapped = not_next == 1
        first, second = torch.where(swapped, cut, start), torch.where(swapped, start, cut)
        first_length = torch.where(swapped, stop - cut, cut - start)
        return SampledSpans(
            first=first,
            first_length=first_length,
            second=second,
            second_length=stop - start - first_length,
            not_next=not_next,
        )
    # Any token of A's language outside its document: an offset from that document's end, modulo the text.
    size = data.ends[document] - data.tokens_before(document)
    begin, tokens = data.region_of(document)
    elsewhere = rng.randint("elsewhere", examples, (tokens - size)[:, None]).squeeze(1)
    # A random B is no longer than the true one, or the length would give it away.
    limit = stop - cut
    other, other_stop, _ = data.window_around(begin + (data.ends[document] - begin + elsewhere) % tokens, limit)
    second = torch.where(not_next == 1, other, cut)
    second_stop = torch.where(not_next == 1, torch.minimum(other_stop, other + limit), stop)
    return SampledSpans(
        first=start, first_length=cut - start, second=second, second_length=second_stop - second, not_next=not_next
    )


def sample_masked_positions(
    rng: CounterRng,
    examples: Tensor,
    spans: SampledSpans,
    starts_word: Tensor | None,
    *,
    length: int,
    mask_rate: int | Tensor,
    slots: int,
    mask_span: int = 1,
) -> tuple[Tensor, Tensor]:
    """[batch, slots] positions to mask, in random order, and their weights: 1 for `mask_rate` of each text, else 0;
    given `starts_word` [batch, length], of whole words.

    With a `mask_span` above 1 the text is cut into spans (`cut_spans`), which are masked in random order. Where
    `mask_rate` is reached, the last one is cut off at a random end: tokens at the bounds of a text, where a span always
    starts or ends, are hardly more probable than others.
    """
    wanted, either_end = masked_count(spans, mask_rate, slots), mask_span > 1
    starts = cut_spans(rng, examples, spans, starts_word, length, mask_span) if either_end else starts_word
    order = random_order(rng, examples, spans, starts, length=length, count=slots + 1, either_end=either_end)
    rank = torch.arange(slots, device=examples.device)
    if starts_word is None:
        return order[:, :slots], (rank < wanted).float()
    # The first word is masked as far as slots allow; of the others, one that does not fit is not masked at all.
    words = unit_indices(starts_word).gather(1, order)
    first = words == words[:, :1]
    wanted = torch.maximum(wanted, first.sum(1, keepdim=True).clamp(max=slots))
    partial = (words == words.gather(1, wanted)) & ~first
    return order[:, :slots], ((rank < wanted) & ~partial[:, :-1]).float()


def cut_spans(
    rng: CounterRng, examples: Tensor, spans: SampledSpans, starts_word: Tensor | None, length: int, longest: int
) -> Tensor:
    """[batch, length] where spans of random numbers of tokens start or, given where words start, of words.

    P(l) = p (1 - p)^(l - 1) / (1 - (1 - p)^m) for l from 1 to m = `longest`, with p = 0.2: the distribution of SpanBERT
    (Joshi et al., 2020), where m = 10 and the mean is 3.8. A span ends early where its text does.
    """
    bits = (rng.random_bits("span", examples, length) >> 39).int()  # 24 random bits
    # l > k if they are 2^24 P(l <= k) or more.
    below = [(1 - (1 - SPAN_P) ** k) / (1 - (1 - SPAN_P) ** longest) for k in range(1, longest)]
    lengths = sum(((bits >= round(2**24 * share)).int() for share in below), start=torch.ones_like(bits))
    # The first token or word of the text, after [CLS], is number 1.
    following = (lengths.cumsum(1) + 1).clamp(max=length)
    starts = torch.zeros(len(bits), length + 1, dtype=torch.bool, device=bits.device)
    starts = starts.scatter(1, following, True)[:, :length]
    if starts_word is not None:
        starts = starts_word & starts.gather(1, unit_indices(starts_word))
    return spans.starts_with_bounds(starts)


def sample_masked_units(
    rng: CounterRng,
    examples: Tensor,
    spans: SampledSpans,
    starts: Tensor,
    *,
    mask_rate: int | Tensor,
    slots: int,
) -> tuple[Tensor, Tensor]:
    """The same of whole units, given where they start [batch, length]: a unit is masked as a whole or not at all.

    The last one, of which only a part would fit into `mask_rate` of the text, is masked with a probability of that
    part, so that the share of masked tokens is `mask_rate` in the mean, however long units are.
    """
    length = starts.shape[1]
    wanted = masked_count(spans, mask_rate, slots)
    order = random_order(rng, examples, spans, starts, length=length, count=slots + 1)
    unit = unit_indices(starts)
    units = unit.gather(1, order)
    rank = torch.arange(order.shape[1], device=examples.device)
    last = units.gather(1, wanted - 1)
    size = (unit == last).sum(1, keepdim=True)
    before = ((units == last) & (rank < wanted)).sum(1, keepdim=True)  # tokens of the last unit that are wanted
    whole = wanted - before + size  # tokens to mask with all of it
    chosen = rng.randint("part", examples, size) < before
    # The first unit is always masked, as far as slots allow; another one only if it fits.
    first = before == wanted
    masked = torch.where(first, whole.clamp(max=slots), torch.where(chosen & (whole <= slots), whole, wanted - before))
    return order[:, :slots], (rank[:slots] < masked).float()


def masked_count(spans: SampledSpans, mask_rate: int | Tensor, slots: int) -> Tensor:
    """[batch, 1] number of tokens to mask: `mask_rate` of each text, rounded, at least one and at most `slots`."""
    text = spans.first_length + spans.second_length
    return ((text * mask_rate + MILLION // 2) // MILLION).clamp(1, slots)[:, None]


def unit_indices(starts: Tensor) -> Tensor:
    """[batch, length] index of the word or unit that each position belongs to, given where they start."""
    return starts.long().cumsum(1) - 1


def random_order(
    rng: CounterRng,
    examples: Tensor,
    spans: SampledSpans,
    starts: Tensor | None,
    *,
    length: int,
    count: int,
    either_end: bool = False,
) -> Tensor:
    """[batch, count] positions in random order, special tokens and padding last; given where words start, the subwords
    of a word follow each other, for a random half of the words backwards if `either_end`."""
    position = torch.arange(length, device=examples.device)
    key = rng.random_bits("mask", examples, length)
    if starts is not None:
        # Subwords share the key of their word's first one, so that they are chosen together and in order.
        key = key.gather(1, unit_indices(starts))
    within = torch.where(key >> 12 & 1 == 1, 4095 - position, position) if either_end else position
    key = key >> 12 << 12 | within
    key = torch.where(spans.is_special(length), (2**51 - 1 << 12) | position, key)
    return key.topk(min(count, length), dim=1, largest=False, sorted=True).indices


def replace_masked(
    rng: CounterRng,
    examples: Tensor,
    targets: Tensor,
    *,
    mask_id: int,
    vocab_size: int,
    spans_at: Tensor | None = None,
) -> Tensor:
    """[batch, slots] what stands at the masked positions instead of `targets`: [MASK] (80%), a random token (10%), or
    the token itself (10%), as fine-tuning has no [MASK]; sampled independently for each token or, given the positions
    `spans_at` of masked spans, for each span (SpanBERT)."""
    choice = rng.randint("replace", examples, 10, targets.shape[1])
    if spans_at is not None:  # the tokens of a span follow each other, forwards or backwards
        distance = spans_at.diff(dim=1, prepend=spans_at[:, :1])
        choice = choice.gather(1, (distance.abs() != 1).long().cumsum(1) - 1)
    noise = rng.randint("noise", examples, vocab_size, targets.shape[1])
    return torch.where(choice < 8, mask_id, torch.where(choice == 8, noise, targets))
