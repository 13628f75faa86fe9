"""Claims about networks before attention."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Finding, Say
from keel.claims.measures import gradient_descent
from keel.claims.small_models import learn_words, read_docstrings
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.demo.docstrings import balanced, labelled_sentences
from keel.nn.convolution import ConvolutionFilters
from keel.nn.huffman import huffman_tree
from keel.nn.recurrent import RecurrentLayers
from keel.systems.bert import Bert
from keel.systems.nnlm import NgramBatch, Nnlm

Loss = Literal["softmax", "hierarchical", "nce", "negative"]
POINTS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
QUESTIONS = {"AND": [0.0, 0.0, 0.0, 1.0], "XOR": [0.0, 1.0, 1.0, 0.0]}


def exclusive_or(say: Say) -> Finding:
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
    return Finding(
        best[one, "AND"] == 1 and limited <= 0.75 and best[nonlinear, "XOR"] == 1,
        f"without an activation layers are one linear map and reach at most {limited:.0%} on XOR; with one, "
        f"{best[nonlinear, 'XOR']:.0%}",
    )


def cost_of_softmax(say: Say) -> Finding:
    """12 to 15: cost per word in Bengio's network of softmax, hierarchical softmax, NCE and negative sampling."""
    methods: dict[Loss, str] = {
        "softmax": "full softmax",
        "hierarchical": "hierarchical softmax",
        "nce": "NCE",
        "negative": "negative sampling",
    }
    sizes = (1_000, 10_000, 50_000)
    times: dict[str, list[float]] = {}
    for loss, name in methods.items():
        found = [_loss_time(Nnlm(width=32, hidden=64, loss=loss, negatives=5), size) for size in sizes]
        times[loss] = [seconds for seconds, _ in found]
        listed = ", ".join(f"{scores:,.0f} ({1e6 * seconds:.1f} us)" for seconds, scores in found)
        say(f"{name}: scores per word with vocabularies of {', '.join(f'{size:,}' for size in sizes)}: {listed}")
    growth = {loss: found[-1] / found[0] for loss, found in times.items()}
    slowest = max(times[loss][-1] for loss in methods if loss != "softmax")
    return Finding(
        growth["softmax"] > 10 and max(growth[loss] for loss in methods if loss != "softmax") < 5,
        f"from 1,000 to 50,000 words the time of the softmax grows by a factor of {growth['softmax']:.0f}, of "
        f"hierarchical softmax by {growth['hierarchical']:.1f}, of NCE by {growth['nce']:.1f} and of negative sampling "
        f"by {growth['negative']:.1f}; at 50,000 it is {times['softmax'][-1] / slowest:.0f} times slower than the "
        "slowest of them",
    )


def shrinking_images(say: Say) -> Finding:
    """26: a 240 x 240 image through ten 5 x 5 convolutions, with and without padding and stride."""
    image, kernel = torch.randn(1, 1, 240, 240), torch.randn(1, 1, 5, 5) / 5

    def sides(layers: int, *, padding: int = 0, stride: int = 1) -> list[int]:
        x, found = image, [240]
        for _ in range(layers):
            x = torch.tanh(F.conv2d(x, kernel, padding=padding, stride=stride))
            found.append(x.shape[-1])
        return found

    bare, padded, strided = sides(10), sides(10, padding=2), sides(3, padding=2, stride=2)
    say(
        f"ten 5 x 5 convolutions: {bare[0]} to {bare[-1]}, {bare[0] - bare[1]} per layer; {padded[-1]} with a padding "
        "of 2"
    )
    say(f"with a stride of 2: {', '.join(map(str, strided))}")
    lost = 1 - bare[-1] ** 2 / bare[0] ** 2
    flipped = F.conv2d(image, kernel.flip(2, 3))
    by_hand = sum(
        kernel[0, 0, 4 - a, 4 - b] * image[0, 0, a : a + 236, b : b + 236] for a in range(5) for b in range(5)
    )
    difference = (flipped[0, 0] - by_hand).abs().max().item()
    say(f"cross-correlation with a flipped kernel against the formula of convolution: difference {difference:.0e}")
    return Finding(
        bare[-1] == 200 and padded[-1] == 240 and strided == [240, 120, 60, 30] and difference < 1e-4,
        f"240 becomes {bare[-1]}, a loss of {lost:.0%} of the area; padding preserves the size, a stride of 2 halves "
        "it",
    )


def receptive_fields(say: Say) -> Finding:
    """32: receptive field of the middle word of 41, by the gradient."""
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
        "convolution over 3 words": one,
        "convolution over 5 words": other,
        "4 convolutions over 3 words": stacked,
        "LSTM": lambda x: recurrent(x)[0][-1],
        "self-attention layer": lambda x: attention.contextualize(x, rows).top,
    }
    recurrent = RecurrentLayers("lstm", width, width, 1)
    seen: dict[str, int] = {}
    for name, network in kinds.items():
        vectors = torch.randn(1, words, width, requires_grad=True)
        (gradient,) = torch.autograd.grad(network(vectors)[0, words // 2, 0], vectors)
        moves = gradient[0].abs().sum(1)
        seen[name] = int((moves > 0).sum())
        say(f"{name}: {seen[name]} of {words} words have a gradient; of the first word {moves[0]:.1e}")
    found = list(seen.values())
    return Finding(
        found == [3, 5, 9, words // 2 + 1, words],
        f"a convolution sees its window ({found[0]} or {found[1]} words) and each further layer two words more, an "
        f"LSTM all words up to its own ({found[3]}), one attention layer all {found[4]}",
    )


def characters_only(say: Say) -> Finding:
    """18: classification by characters, by words, and by words with pre-trained vectors."""
    docstrings = read_docstrings(say)
    learned = balanced(labelled_sentences(docstring for docstring in docstrings if not docstring.held_out), 100)
    test = balanced(labelled_sentences(docstring for docstring in docstrings if docstring.held_out), 60)
    corpus = ["\n".join(docstring.sentences) for docstring in docstrings if not docstring.held_out]
    say(f"which of ten packages is a sentence from? {len(learned)} labels, {len(test)} test sentences")
    words = learn_words(corpus, keel.Word2vec(width=64), epochs=8, say=say)
    shape = {"width": 64, "filters": 50, "dropout": 0.5, "epochs": 15, "batch": 20}
    network = {"network": "cnn", "network_width": 50, "epochs": 15, "batch": 20}
    methods: dict[str, tuple[Any, dict[str, Any]]] = {
        "CNN over characters": ("cnn", {"units": "characters", **shape}),
        "CNN over words": ("cnn", shape),
        "CNN over words with pre-trained vectors": (words, network),
    }
    found = []
    for name, (system, settings) in methods.items():
        model = keel.finetune(system, learned, dev=None, device="cpu", **settings)
        found.append(keel.evaluate(model, test).values["accuracy"])
        say(f"{name}: accuracy {found[-1]:.1%}")
    characters, plain, pretrained = found
    return Finding(
        characters.value < pretrained.value if characters.differs_from(pretrained) else None,
        f"characters reach {characters.value:.1%}, words {plain.value:.1%}, words with pre-trained vectors "
        f"{pretrained.value:.1%}",
    )


def _loss_time(system: Nnlm, words: int) -> tuple[float, float]:
    """Seconds per word of the loss for a vocabulary of this size, and the number of scores."""
    torch.manual_seed(0)
    objective = system.build_objective(system.build_encoder(words), Tokenizer.from_words(["word"])).train()
    counts = 1e6 / torch.arange(1, words + 1)  # Zipf's law
    objective.counts_of_words.copy_(counts)
    context, wanted = torch.randint(words, (1, 512, system.order - 1)), torch.multinomial(counts, 512, True)[None]
    sampled = torch.randint(words, (1, 512, system.negatives if system.loss in ("nce", "negative") else 0))
    batch = NgramBatch(context=context, words=wanted, present=torch.ones(1, 512), negatives=sampled)
    seconds = []
    with torch.inference_mode():
        for _ in range(5):  # the first builds the tree
            start = time.perf_counter()
            objective(batch)
            seconds.append((time.perf_counter() - start) / 512)
    if system.loss == "hierarchical":
        return min(seconds), float(huffman_tree(counts.numpy()).lengths[wanted.numpy()].mean())
    return min(seconds), words if system.loss == "softmax" else 1 + system.negatives


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

    wanted = answers.expand(20, 4)
    gradient_descent(lambda: 20 * F.binary_cross_entropy_with_logits(forward(), wanted), weights, 1000, 0.5)
    return ((forward() > 0) == (wanted > 0.5)).float().mean(1)
