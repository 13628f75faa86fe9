"""Claims about networks before attention."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import max_difference, minimize, shortest_time, token_batch
from keel.claims.small_models import TINY
from keel.nn.convolution import ConvolutionFilters
from keel.nn.huffman import huffman_tree
from keel.nn.recurrent import RecurrentLayers
from keel.systems.nnlm import NgramBatch

POINTS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
QUESTIONS = {"AND": [0.0, 0.0, 0.0, 1.0], "XOR": [0.0, 1.0, 1.0, 0.0]}


def exclusive_or(say: Say) -> Verdict:
    """25: one layer, and two layers with and without an activation, from 20 initialisations on AND and XOR."""
    kinds = {
        "one layer (perceptron)": ((2, 1), False),
        "two layers, no activation": ((2, 8, 1), False),
        "two layers, tanh between": ((2, 8, 1), True),
    }
    best: dict[tuple[str, str], float] = {}
    for name, (sizes, activation) in kinds.items():
        for question, answers in QUESTIONS.items():
            scores = _accuracies(sizes, activation, torch.tensor(answers))
            best[name, question] = scores.max().item()
            say(f"{name}: {question} accuracy {scores.max():.0%} at best of 20 runs, {scores.mean():.0%} on average")
    one, linear, nonlinear = kinds
    limited = max(best[one, "XOR"], best[linear, "XOR"])
    return Verdict(
        best[one, "AND"] == 1 and limited <= 0.75 and best[nonlinear, "XOR"] == 1,
        f"without an activation layers are one linear map and reach at most {limited:.0%} on XOR; with one, "
        f"{best[nonlinear, 'XOR']:.0%}",
    )


def cost_of_softmax(say: Say) -> Verdict:
    """12 to 15: cost per word in Bengio's network of softmax, hierarchical softmax, NCE and negative sampling."""
    base = keel.Nnlm(width=32, hidden=64, negatives=5)
    losses = {
        "full softmax": replace(base, loss="softmax"),
        "hierarchical softmax": replace(base, loss="hierarchical"),
        "NCE": replace(base, loss="nce"),
        "negative sampling": replace(base, loss="negative"),
    }
    sizes = (1_000, 10_000, 50_000)
    growth, slowest = [], []
    for name, system in losses.items():
        found = [_loss_time(system, size) for size in sizes]
        growth.append(found[-1][0] / found[0][0])
        slowest.append(found[-1][0])
        costs = ", ".join(f"{scores:,.0f} ({1e6 * seconds:.1f} us)" for seconds, scores in found)
        say(f"{name}: scores per word with vocabularies of {', '.join(f'{size:,}' for size in sizes)}: {costs}")
    full, hierarchical, nce, negative = growth
    return Verdict(
        full > 10 and max(hierarchical, nce, negative) < 5,
        f"from 1,000 to 50,000 words the time of the softmax grows by a factor of {full:.0f}, of hierarchical softmax "
        f"by {hierarchical:.1f}, of NCE by {nce:.1f} and of negative sampling by {negative:.1f}; at 50,000 it is "
        f"{slowest[0] / max(slowest[1:]):.0f} times slower than the slowest of them",
    )


def shrinking_images(say: Say) -> Verdict:
    """26: a 240 x 240 image through ten 5 x 5 convolutions, with and without padding and stride."""
    image, kernel = torch.randn(1, 1, 240, 240), torch.randn(1, 1, 5, 5) / 5

    def sides(layers: int, *, padding: int = 0, stride: int = 1) -> list[int]:
        x, found = image, [240]
        for _ in range(layers):
            x = torch.tanh(F.conv2d(x, kernel, padding=padding, stride=stride))
            found.append(x.shape[-1])
        return found

    bare, padded, strided = sides(10), sides(10, padding=2), sides(3, padding=2, stride=2)
    shrunk = f"{bare[0]} to {bare[-1]}, {bare[0] - bare[1]} per layer; {padded[-1]} with a padding of 2"
    say(f"ten 5 x 5 convolutions: {shrunk}")
    say(f"with a stride of 2: {', '.join(map(str, strided))}")
    lost = 1 - bare[-1] ** 2 / bare[0] ** 2
    by_hand = torch.zeros(236, 236)
    for a in range(5):
        for b in range(5):
            by_hand += kernel[0, 0, 4 - a, 4 - b] * image[0, 0, a : a + 236, b : b + 236]
    difference = max_difference(F.conv2d(image, kernel.flip(2, 3))[0, 0], by_hand)
    say(f"cross-correlation with a flipped kernel against the formula of convolution: difference {difference:.0e}")
    return Verdict(
        bare[-1] == 200 and padded[-1] == 240 and strided == [240, 120, 60, 30] and difference < 1e-4,
        f"240 becomes {bare[-1]}, a loss of {lost:.0%} of the area; padding preserves the size, a stride of 2 halves "
        "it",
    )


def receptive_fields(say: Say) -> Verdict:
    """32: receptive field of the middle word of 41, by the gradient."""
    torch.manual_seed(0)
    width, words = 32, 41
    one, other, *stack = (ConvolutionFilters(width, {window: width}) for window in (3, 5, 3, 3, 3, 3))
    attention = replace(TINY, max_positions=words, sequence_length=words).build_encoder(1).eval()
    recurrent = RecurrentLayers("lstm", width, width, 1)
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "convolution over 3 words": one,
        "convolution over 5 words": other,
        "4 convolutions over 3 words": nn.Sequential(*(layer for each in stack for layer in (each, nn.Tanh()))),
        "LSTM": lambda x: recurrent(x)[0][-1],
        "self-attention layer": lambda x: attention.contextualize(x, token_batch(torch.zeros(1, words).long())).top,
    }
    found: list[int] = []
    for name, network in kinds.items():
        vectors = torch.randn(1, words, width, requires_grad=True)
        (gradient,) = torch.autograd.grad(network(vectors)[0, words // 2, 0], vectors)
        moves = gradient[0].abs().sum(1)
        found.append(int((moves > 0).sum()))
        say(f"{name}: {found[-1]} of {words} words have a gradient; of the first word {moves[0]:.1e}")
    return Verdict(
        found == [3, 5, 9, words // 2 + 1, words],
        f"a convolution sees its window ({found[0]} or {found[1]} words) and each further layer two words more, an "
        f"LSTM all words up to its own ({found[3]}), one attention layer all {found[4]}",
    )


def _loss_time(system: keel.Nnlm, words: int) -> tuple[float, float]:
    """Seconds per word of the loss for a vocabulary of this size, and the number of scores."""
    torch.manual_seed(0)
    objective = system.build_objective(system.build_encoder(words), keel.Tokenizer.from_words(["word"])).train()
    counts = 1e6 / torch.arange(1, words + 1)  # Zipf's law
    objective.counts_of_words.copy_(counts)
    context, wanted = torch.randint(words, (1, 512, system.order - 1)), torch.multinomial(counts, 512, True)[None]
    sampled = torch.randint(words, (1, 512, system.negatives if system.loss in ("nce", "negative") else 0))
    batch = NgramBatch(context=context, words=wanted, present=torch.ones(1, 512), negatives=sampled)
    with torch.inference_mode():
        seconds = shortest_time(lambda: objective(batch)) / 512  # the first run builds the tree
    if system.loss == "hierarchical":
        return seconds, float(huffman_tree(counts.numpy()).lengths[wanted.numpy()].mean())
    return seconds, words if system.loss == "softmax" else 1 + system.negatives


def _accuracies(sizes: tuple[int, ...], activation: bool, answers: Tensor) -> Tensor:
    """Accuracies [20] on the four points after 1000 steps from 20 initialisations."""
    torch.manual_seed(0)
    weights = [torch.randn(20, width + 1, next_width) for width, next_width in pairwise(sizes)]

    def forward() -> Tensor:
        vectors = POINTS.expand(20, 4, 2)
        for number, weight in enumerate(weights):
            vectors = F.pad(vectors, (0, 1), value=1.0) @ weight  # the last row is the bias
            if activation and number < len(weights) - 1:
                vectors = torch.tanh(vectors)
        return vectors[..., 0]  # [20, 4]

    def loss() -> Tensor:
        return 20 * F.binary_cross_entropy_with_logits(forward(), wanted)

    wanted = answers.expand(20, 4)
    minimize(loss, weights, 1000, 0.5, torch.optim.SGD)
    return ((forward() > 0) == (wanted > 0.5)).float().mean(1)
