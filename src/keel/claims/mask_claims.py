"""A claim about [MASK]: how much it disturbs the vectors of the other words, in an LSTM and in a Transformer."""

from collections.abc import Callable
from random import Random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import keel
from keel.claims.annotated_sentences import NOUNS, generate_references
from keel.claims.claim import Say, Verdict
from keel.claims.measures import accuracy, batch_of, linear_probe, mean_score, parameter_count
from keel.data.token_batch import TokenBatch

WIDTH, CELLS, LENGTH, STEPS, SEEDS = 64, 48, 12, 400, 2
MASKED = (1, 2, 4)
"""Numbers of words that are replaced."""
Encode = Callable[[TokenBatch], Tensor]


class MaskedLstm(nn.Module):
    """Word embeddings and a bidirectional LSTM of two layers."""

    lr = 1e-2

    def __init__(self, vocab_size: int):
        super().__init__()
        self.words = nn.Embedding(vocab_size, WIDTH)
        self.lstm = nn.LSTM(WIDTH, CELLS, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * CELLS, WIDTH)

    def forward(self, batch: TokenBatch) -> Tensor:
        """[batch, time, width]."""
        return self.out(self.lstm(self.words(batch.ids))[0])

    def input_gate(self, ids: Tensor) -> Tensor:
        """[batch, time] mean input gate of the first layer, forward direction."""
        weights: dict[str, Tensor] = dict(self.lstm.named_parameters())
        inputs, gates = self.words(ids), []
        hidden = cell = inputs.new_zeros(len(ids), CELLS)
        for step in range(ids.shape[1]):
            preactivation = F.linear(inputs[:, step], weights["weight_ih_l0"], weights["bias_ih_l0"])
            preactivation = preactivation + F.linear(hidden, weights["weight_hh_l0"], weights["bias_hh_l0"])
            into, forget, new, out = preactivation.chunk(4, 1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            hidden = out.sigmoid() * cell.tanh()
            gates.append(into.sigmoid().mean(1))
        return torch.stack(gates, 1)


class MaskedTransformer(nn.Module):
    """The encoder of a small BERT."""

    lr = 3e-3

    def __init__(self, vocab_size: int):
        super().__init__()
        system = keel.Bert(layers=2, width=WIDTH, head_dim=32, max_positions=32, sequence_length=16, dropout=0.0)
        self.bert = system.build_encoder(vocab_size)
        self.words = self.bert.words

    def forward(self, batch: TokenBatch) -> Tensor:
        """[batch, time, width]."""
        return self.bert(batch).top


def masks_in_networks(say: Say) -> Verdict:
    """98: words of a sentence are replaced by [MASK]; how far do the vectors of the other words move?"""
    sentences, tokenizer = _sentences(6000, 0)
    test, _ = _sentences(1000, 1)
    ids, others = (
        torch.tensor([tokenizer.encode(" ".join(words)).ids for words in each]) for each in (sentences, test)
    )
    say(
        f"{len(ids)} sentences of {LENGTH} words, {len(tokenizer)} words; MLM (15%, of these 80% [MASK]), {STEPS} steps"
    )
    moved: dict[str, list[np.ndarray]] = {}
    lost: dict[str, list[float]] = {}
    for name, build in (("LSTM", MaskedLstm), ("Transformer", MaskedTransformer)):
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            network = build(len(tokenizer))
            loss = _train(network, ids, tokenizer)
            found, before, after = _disturbance(network, others, tokenizer, seed)
            moved.setdefault(name, []).append(found["[MASK]"])
            lost.setdefault(name, []).append(before - after)
            shares = ", ".join(f"{each:.2f}" for each in found["[MASK]"].mean(1))
            random = ", ".join(f"{each:.2f}" for each in found["random"].mean(1))
            say(f"{name} ({parameter_count(network):,} parameters), seed {seed}: training loss {loss:.2f}")
            say(f"  distance of the other vectors with {MASKED} [MASK]: {shares}; with random words instead: {random}")
            say(f"  probe for the pronoun, on the last word: {before:.1%}; with 2 other words masked {after:.1%}")
            if isinstance(network, MaskedLstm):
                _say_gates(network, others, tokenizer, say)
            else:
                _say_attention(network, others, tokenizer, say)
    gaps = [mean_score((lstm - other).mean(0)) for lstm, other in zip(moved["LSTM"], moved["Transformer"], strict=True)]
    means = {name: float(np.mean(each)) for name, each in moved.items()}
    figures = (
        f"the vectors of the other words move by {means['LSTM']:.2f} in the LSTM and {means['Transformer']:.2f} in the "
        f"Transformer; the probe loses {100 * np.mean(lost['LSTM']):.1f} and "
        f"{100 * np.mean(lost['Transformer']):.1f} points"
    )
    clear = [lstm > other for lstm, other in zip(lost["LSTM"], lost["Transformer"], strict=True)]
    if all((gap.low or 0) > 0 for gap in gaps):
        return Verdict(True if all(clear) else None, figures)
    return Verdict(None if any((gap.low or 0) > 0 for gap in gaps) or any(clear) else False, figures)


def _sentences(count: int, seed: int) -> tuple[list[list[str]], keel.Tokenizer]:
    """Sentences of equal length with a pronoun that agrees with one noun, and a tokenizer of all their words."""
    found = [each.words for each in generate_references("en", count, 0, Random(seed))]
    return [words for words in found if len(words) == LENGTH], keel.Tokenizer.from_words(
        sorted({word for words in found for word in words})
    )


def _train(network: "MaskedLstm | MaskedTransformer", ids: Tensor, tokenizer: keel.Tokenizer) -> float:
    """Train a masked language model; the logits are products with the word embeddings."""
    lr = network.lr
    nn.init.normal_(network.words.weight, std=0.2)
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=STEPS)
    network.train()
    losses = []
    for _ in range(STEPS):
        batch = ids[torch.randint(len(ids), (64,))]
        chosen = torch.rand(batch.shape) < 0.15
        change = torch.rand(batch.shape)
        shown = torch.where(chosen & (change < 0.8), tokenizer.mask_id, batch)
        shown = torch.where(chosen & (change > 0.9), torch.randint_like(batch, len(tokenizer)), shown)
        logits = network(batch_of(shown))[chosen] @ network.words.weight.T
        loss = F.cross_entropy(logits, batch[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    network.eval()
    return float(np.mean(losses[-50:]))


@torch.inference_mode()
def _disturbance(
    network: nn.Module, ids: Tensor, tokenizer: keel.Tokenizer, seed: int
) -> tuple[dict[str, np.ndarray], float, float]:
    """Distances [numbers of words, sentences] that the other words' vectors move, relative to their mean distance from
    the mean vector; accuracy of a probe for the pronoun without and with masks."""
    whole = network(batch_of(ids))
    spread = (whole - whole.mean((0, 1))).norm(dim=2).mean()
    pronoun, last = LENGTH - 5, LENGTH - 1
    free = torch.tensor([place for place in range(LENGTH) if place not in (pronoun, last)])
    generator = torch.Generator().manual_seed(seed)
    order = free[torch.rand(len(ids), len(free), generator=generator).argsort(1)]  # [sentences, positions]
    found: dict[str, list[np.ndarray]] = {"[MASK]": [], "random": []}
    rows = torch.arange(len(ids))[:, None]
    shown_masks: dict[int, Tensor] = {}
    for count in MASKED:
        positions = order[:, :count]
        kept = torch.ones_like(ids, dtype=torch.bool)
        kept[rows, positions] = False
        for name in found:
            shown = ids.clone()
            other = ids[
                torch.randint(len(ids), positions.shape, generator=generator), positions
            ]  # the word of another sentence
            shown[rows, positions] = tokenizer.mask_id if name == "[MASK]" else other
            vectors = network(batch_of(shown))
            if name == "[MASK]":
                shown_masks[count] = vectors[:, last]
            moved = (vectors - whole).norm(dim=2) / spread
            found[name].append(((moved * kept).sum(1) / kept.sum(1)).numpy())
    pronouns = [*NOUNS["en"]]
    answers = torch.tensor([pronouns.index(tokenizer.token_of(int(number))) for number in ids[:, pronoun]])
    half = slice(len(ids) // 2)
    before = linear_probe(whole[:, last], answers, half, ridge=1e-3)
    mixed = torch.cat([whole[half, last], shown_masks[2][len(ids) // 2 :]])
    after = linear_probe(mixed, answers, half, ridge=1e-3)
    return {name: np.stack(each) for name, each in found.items()}, accuracy(before), accuracy(after)


@torch.inference_mode()
def _say_gates(network: MaskedLstm, ids: Tensor, tokenizer: keel.Tokenizer, say: Say) -> None:
    place = LENGTH // 2
    shown = ids.clone()
    shown[:, place] = tokenizer.mask_id
    word, mask = (network.input_gate(each)[:, place].mean().item() for each in (ids, shown))
    say(f"  mean input gate (layer 1, forward) of word {place + 1}: {word:.2f}, of [MASK] in its place {mask:.2f}")


@torch.inference_mode()
def _say_attention(network: MaskedTransformer, ids: Tensor, tokenizer: keel.Tokenizer, say: Say) -> None:
    place = LENGTH // 2
    shown = ids.clone()
    shown[:, place] = tokenizer.mask_id
    found = []
    for each in (ids, shown):
        layers: list[Tensor] = []
        network.bert(batch_of(each), record=lambda name, layer, value, layers=layers: layers.append(value))
        received = torch.stack(layers)[..., place].mean((0, 1, 2))  # [queries] of [layers, batch, heads, queries]
        found.append(((received.sum() - received[place]) / (LENGTH - 1)).item())
    say(f"  mean attention of the others to word {place + 1}: {found[0]:.1%}, to [MASK] in its place {found[1]:.1%}")
