"""What decoding costs beside the network: a model whose scores are precomputed, 30,000 words, 64 texts.

    python benchmarks/decoding.py [--threads 1] [--steps 20] [--device cpu]

A step of each way to write is timed against the same written plainly: log_softmax over all words, topk over beams x
words for a search; sort, softmax and multinomial for sampling. `network` is what the output layer of a Transformer of
width 512 takes for as large a batch: the least that stands beside it.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from keel.generation.beam_search import BeamSearch, beam_search
from keel.generation.sampling import Sampling, sample
from keel.training.objective import Tensors


@dataclass(frozen=True, kw_only=True)
class EmptyState(Tensors):
    index: Tensor  # [batch]


class PrecomputedLogits:
    """Language model whose logits are computed before, so that only decoding takes time."""

    bos_id = 0
    eos_id = 1
    max_context = None

    def __init__(self, batch_size: int, vocab_size: int, device: str):
        torch.manual_seed(0)
        self.scores = torch.randn(batch_size, vocab_size, device=device) * 2
        self.scores[:, 1] = -20.0  # no text ends

    def new_state(self, batch_size: int) -> EmptyState:
        return EmptyState(index=torch.zeros(batch_size, device=self.scores.device))

    def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, EmptyState]:
        return self.scores[: len(ids)], state if state is not None else self.new_state(len(ids))


def plain_beam(model: PrecomputedLogits, texts: int, beams: int, steps: int) -> None:
    sums = torch.zeros(texts, beams, device=model.scores.device)
    for _ in range(steps):
        log_probs = model.scores[: texts * beams].log_softmax(1)
        longer = (log_probs.view(texts, beams, -1) + sums[..., None]).flatten(1)
        sums, indices = longer.topk(2 * beams, dim=1)
        sums = sums[:, :beams]
        indices.tolist()


def plain_sample(model: PrecomputedLogits, texts: int, steps: int, sampling: Sampling) -> None:
    for _ in range(steps):
        scores = model.scores[:texts] / (sampling.temperature or 1.0)
        if not sampling.temperature:
            scores.argmax(1).tolist()
            continue
        if sampling.top_k:
            least = scores.topk(sampling.top_k, dim=1).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if sampling.top_p < 1:
            ordered, indices = scores.sort(descending=True)
            shares = ordered.softmax(1)
            drop = shares.cumsum(1) - shares >= sampling.top_p
            scores = scores.masked_fill(drop.scatter(1, indices, drop), -torch.inf)
        torch.multinomial(scores.softmax(1), 1).tolist()


def network(batch_size: int, vocab_size: int, steps: int, device: str) -> Callable[[], None]:
    embeddings, vectors = torch.randn(vocab_size, 512, device=device), torch.randn(batch_size, 512, device=device)

    def run() -> None:
        for _ in range(steps):
            (vectors @ embeddings.T)[0, 0].item()

    return run


def timed(ways: dict[str, Callable[[], Any]], rounds: int, steps: int) -> Iterator[tuple[str, float]]:
    """Milliseconds a step, the median of rounds in which the ways take turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            if number:  # the first is for warming up
                found[name].append(1000 * (time.perf_counter() - start) / steps)
    for name, times in found.items():
        yield name, statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=30_000)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts, beams, steps = options.texts, options.beams, options.steps
    model = PrecomputedLogits(texts * beams, options.vocabulary, options.device)
    prompts = [[] for _ in range(texts)]
    print(f"{texts} texts, {options.vocabulary:,} words, {options.threads} threads, {options.device}; ms a step")
    print(f"{'':28}{'Keel':>8}{'plainly':>10}{'ratio':>8}{'network':>10}")
    strategies = {
        "greedy": Sampling(temperature=0),
        "temperature 0.8": Sampling(temperature=0.8),
        "top-k 50": Sampling(top_k=50),
        "top-p 0.9": Sampling(top_p=0.9, temperature=0.5),
    }
    table: dict[str, dict[str, Callable[[], Any]]] = {
        f"beam {beams}": {
            "keel": lambda: beam_search(model, prompts, BeamSearch(beams=beams), max_new_tokens=steps),
            "plain": lambda: plain_beam(model, texts, beams, steps),
            "network": network(texts * beams, options.vocabulary, steps, options.device),
        }
    }
    for name, sampling in strategies.items():
        table[name] = {
            "keel": lambda sampling=sampling: list(sample(model, prompts, sampling, max_new_tokens=steps)),
            "plain": lambda sampling=sampling: plain_sample(model, texts, steps, sampling),
            "network": network(texts, options.vocabulary, steps, options.device),
        }
    for name, ways in table.items():
        found = dict(timed(ways, options.rounds, steps))
        ratio = found["plain"] / found["keel"]
        print(f"{name:28}{found['keel']:8.2f}{found['plain']:10.2f}{ratio:7.1f}x{found['network']:10.2f}")


if __name__ == "__main__":
    main()
