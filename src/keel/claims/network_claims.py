"""Claims about networks before attention."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Finding, Say
from keel.claims.small_models import learn_words, read_docstrings
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.demo.docstrings import balanced, questions
from keel.nn.convolution import ConvolutionFilters
from keel.nn.huffman import huffman_tree
from keel.nn.recurrent import RecurrentLayers
from keel.systems.bert import Bert
from keel.systems.nnlm import NgramBatch, Nnlm

Loss = Literal["softmax", "hierarchical", "nce", "negative"]
POINTS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
QUESTIONS = {"AND": [0.0, 0.0, 0.0, 1.0], "XOR": [0.0, 1.0, 1.0, 0.0]}


def exclusive_or(say: Say) -> Finding:
    """25: one layer, two layers without an activation, two with one, each from 20 starts on AND and on XOR."""
    kinds = {
        "one layer (perceptron)": ((2, 1), False),
        "two layers, no activation": ((2, 8, 1), False),
        "two layers, tanh between": ((2, 8, 1), True),
    }
    best: dict[tuple[str, str], float] = {}
    for name, (sizes, bent) in kinds.items():
        for question, answers in QUESTIONS.items():
            scores = _learn(sizes, bent, torch.tensor(answers))
            best[name, question] = scores.max().item()
            say(f"{name}: {question} {scores.max():.0%} right at best of 20 starts, {scores.mean():.0%} on average")
    one, flat, bent = kinds
    limited = max(best[one, "XOR"], best[flat, "XOR"])
    return Finding(
        best[one, "AND"] == 1 and limited <= 0.75 and best[bent, "XOR"] == 1,
        f"without an activation no number of layers gets more than {limited:.0%} of XOR, for they are one linear map; "
        f"with one, {best[bent, 'XOR']:.0%}",
    )


def cost_of_softmax(say: Say) -> Finding:
    """12 to 15: the time to weigh up a next word by Bengio's network, by the softmax and by what replaces it."""
    ways: dict[Loss, str] = {
        "softmax": "full softmax",
        "hierarchical": "tree of words",
        "nce": "NCE",
        "negative": "negative sampling",
    }
    sizes = (1_000, 10_000, 50_000)
    times: dict[str, list[float]] = {}
    for way, name in ways.items():
        found = [_time_of(Nnlm(width=32, hidden=64, loss=way, negatives=5), size) for size in sizes]
        times[way] = [seconds for seconds, _ in found]
        listed = ", ".join(f"{scores:,.0f} ({1e6 * seconds:.1f} us)" for seconds, scores in found)
        say(f"{name}: scores to compute for each word, with {', '.join(f'{size:,}' for size in sizes)} words: {listed}")
    growth = {way: found[-1] / found[0] for way, found in times.items()}
    slowest = max(times[way][-1] for way in ways if way != "softmax")
    return Finding(
        growth["softmax"] > 10 and max(growth[way] for way in ways if way != "softmax") < 5,
        f"from 1,000 to 50,000 words the softmax takes {growth['softmax']:.0f} times as long, the tree "
        f"{growth['hierarchical']:.1f}, NCE {growth['nce']:.1f} and negative sampling {growth['negative']:.1f} times; "
        f"at 50,000 it is {times['softmax'][-1] / slowest:.0f} times slower than the slowest of them",
    )


def shrinking_pictures(say: Say) -> Finding:
    """26: a picture of 240 x 240 through ten layers of filters of 5 x 5; what padding and strides change."""
    picture, kernel = torch.randn(1, 1, 240, 240), torch.randn(1, 1, 5, 5) / 5

    def sides(layers: int, *, padding: int = 0, stride: int = 1) -> list[int]:
        x, found = picture, [240]
        for _ in range(layers):
            x = torch.tanh(F.conv2d(x, kernel, padding=padding, stride=stride))
            found.append(x.shape[-1])
        return found

    bare, padded, strided = sides(10), sides(10, padding=2), sides(3, padding=2, stride=2)
    say(
        f"ten layers of 5 x 5: {bare[0]} to {bare[-1]}, {bare[0] - bare[1]} at each; {padded[-1]} with two zeros around"
    )
    say(f"with a stride of 2: {', '.join(map(str, strided))}")
    lost = 1 - bare[-1] ** 2 / bare[0] ** 2
    turned = F.conv2d(picture, kernel.flip(2, 3))
    by_hand = sum(
        kernel[0, 0, 4 - a, 4 - b] * picture[0, 0, a : a + 236, b : b + 236] for a in range(5) for b in range(5)
    )
    apart = (turned[0, 0] - by_hand).abs().max().item()
    say(f"cross-correlation with the kernel turned round is convolution by the formula, to {apart:.0e}")
    return Finding(
        bare[-1] == 200 and padded[-1] == 240 and strided == [240, 120, 60, 30] and apart < 1e-4,
        f"240 becomes {bare[-1]}, so {lost:.0%} of the picture are gone; padding keeps all, a stride of 2 halves",
    )


def what_a_word_sees(say: Say) -> Finding:
    """32: how many words of a sentence of 41 move the vector of the middle one, by the gradient."""
    torch.manual_seed(0)
    width, words = 32, 41
    one, other = (ConvolutionFilters(width, {window: width}) for window in (3, 5))
    above, *more = (ConvolutionFilters(width, {3: width}) for _ in range(4))
    system = Bert(layers=1, width=width, head_dim=width, max_positions=words, sequence_length=words, dropout=0.0)
    attention = system.build_encoder(1).eval()
    rows = TokenBatch(ids=torch.zeros(1, words).long(), lengths=torch.tensor([words]))

    def stacked(x: Tensor) -> Tensor:
        for layer in (above, *more):
            x = torch.tanh(layer(x))
        return x

    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "a layer of filters over 3 words": one,
        "a layer of filters over 5 words": other,
        "4 layers of filters over 3 words": stacked,
        "an LSTM": lambda x: recurrent(x)[0][-1],
        "a layer of self-attention": lambda x: attention.contextualize(x, rows).top,
    }
    recurrent = RecurrentLayers("lstm", width, width, 1)
    seen: dict[str, int] = {}
    for name, network in kinds.items():
        vectors = torch.randn(1, words, width, requires_grad=True)
        (gradient,) = torch.autograd.grad(network(vectors)[0, words // 2, 0], vectors)
        moves = gradient[0].abs().sum(1)
        seen[name] = int((moves > 0).sum())
        say(f"{name}: {seen[name]} of {words} words move the one in the middle; the first by {moves[0]:.1e}")
    found = list(seen.values())
    return Finding(
        found == [3, 5, 9, words // 2 + 1, words],
        f"one layer of filters sees its window ({found[0]} or {found[1]} words), each further layer two words more, "
        f"an LSTM all words before ({found[3]}), and one layer of attention all {found[4]}",
    )


def letters_alone(say: Say) -> Finding:
    """18: sentences by their characters alone, by words, and by words whose vectors were learned from text before."""
    docstrings = read_docstrings(say)
    learned = balanced(questions(docstring for docstring in docstrings if not docstring.held_out), 100)
    test = balanced(questions(docstring for docstring in docstrings if docstring.held_out), 60)
    corpus = ["\n".join(docstring.sentences) for docstring in docstrings if not docstring.held_out]
    say(f"which of ten packages is a sentence from? {len(learned)} labels, {len(test)} new sentences")
    words = learn_words(corpus, keel.Word2vec(width=64), epochs=8, say=say)
    shape = {"width": 64, "filters": 50, "dropout": 0.5, "epochs": 15, "batch": 20}
    network = {"network": "cnn", "network_width": 50, "epochs": 15, "batch": 20}
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "characters, a shallow CNN": ("cnn", {"units": "characters", **shape}),
        "words, the same CNN": ("cnn", shape),
        "words with vectors learned before, the same CNN": (words, network),
    }
    found = []
    for name, (system, settings) in ways.items():
        model = keel.finetune(system, learned, dev=None, device="cpu", **settings)
        found.append(keel.evaluate(model, test).values["accuracy"])
        say(f"{name}: accuracy {found[-1]:.1%}")
    letters, plain, before = found
    return Finding(
        letters.value < before.value if letters.differs_from(before) else None,
        f"characters alone get {letters.value:.1%}, words {plain.value:.1%}, words whose vectors had been learned from "
        f"text {before.value:.1%}",
    )


def _time_of(system: Nnlm, words: int) -> tuple[float, float]:
    """Seconds to weigh up one next word of a vocabulary of that size, and how many scores that takes."""
    torch.manual_seed(0)
    objective = system.build_objective(system.build_encoder(words), Tokenizer.from_words(["word"])).train()
    counts = 1e6 / torch.arange(1, words + 1)  # as Zipf's law has it
    objective.counts_of_words.copy_(counts)
    context, wanted = torch.randint(words, (1, 512, system.order - 1)), torch.multinomial(counts, 512, True)[None]
    drawn = torch.randint(words, (1, 512, system.negatives if system.loss in ("nce", "negative") else 0))
    batch = NgramBatch(context=context, words=wanted, present=torch.ones(1, 512), negatives=drawn)
    seconds = []
    with torch.inference_mode():
        for _ in range(5):  # the first makes the tree
            start = time.perf_counter()
            objective(batch)
            seconds.append((time.perf_counter() - start) / 512)
    if system.loss == "hierarchical":
        return min(seconds), float(huffman_tree(counts.numpy()).lengths[wanted.numpy()].mean())
    return min(seconds), words if system.loss == "softmax" else 1 + system.negatives


def _learn(sizes: tuple[int, ...], bent: bool, answers: Tensor) -> Tensor:
    """[20] the share of the four answers that networks from 20 starts give rightly after 1000 steps."""
    torch.manual_seed(0)
    weights = [torch.randn(20, width + 1, next_width) for width, next_width in pairwise(sizes)]

    def forward() -> Tensor:
        vectors = POINTS.expand(20, 4, 2)
        for number, weight in enumerate(weights):
            vectors = F.pad(vectors, (0, 1), value=1.0) @ weight  # the last row is the bias
            if bent and number < len(weights) - 1:
                vectors = torch.tanh(vectors)
        return vectors[..., 0]  # [20, 4]

    wanted = answers.expand(20, 4)
    descend(lambda: 20 * F.binary_cross_entropy_with_logits(forward(), wanted), weights, 1000, 0.5)
    return ((forward() > 0) == (wanted > 0.5)).float().mean(1)


def descend(loss: Callable[[], Tensor], weights: Sequence[Tensor], steps: int, rate: float) -> float:
    """Move weights down the gradient of a loss, step by step; gives the loss before the last step."""
    for weight in weights:
        weight.requires_grad_()
    value = torch.zeros(())
    for _ in range(steps):
        value = loss()
        gradients = torch.autograd.grad(value, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= rate * gradient
    return value.item()


def learn(loss: Callable[[], Tensor], weights: Sequence[Tensor], steps: int, rate: float) -> None:
    """Move weights down the gradient of a loss by Adam."""
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.Adam(weights, lr=rate)
    for _ in range(steps):
        for weight, gradient in zip(weights, torch.autograd.grad(loss(), weights), strict=True):
            weight.grad = gradient
        optimizer.step()
