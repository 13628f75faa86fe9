"""Claims about convolutions, beside dense layers, recurrent networks and self-attention."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from keel.claims.claim import Say, Verdict
from keel.claims.measures import (
    accuracy,
    batch_of,
    max_difference,
    minimize,
    parameter_count,
    shortest_time,
    show_figure,
)
from keel.claims.small_models import TINY
from keel.nn.convolution import ConvolutionFilters
from keel.nn.recurrent import RecurrentLayers
from keel.nn.transformer_blocks import TransformerBlock
from keel.report.charts import lines

Layer = Callable[[Tensor], Tensor]


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
    show_figure(say, "cnn")
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
        "self-attention layer": lambda x: attention.contextualize(x, batch_of(torch.zeros(1, words).long())).top,
    }
    found: list[int] = []
    for name, network in kinds.items():
        vectors = torch.randn(1, words, width, requires_grad=True)
        (gradient,) = torch.autograd.grad(network(vectors)[0, words // 2, 0], vectors)
        moves = gradient[0].abs().sum(1)
        found.append(int((moves > 0).sum()))
        say(f"{name}: {found[-1]} of {words} words have a gradient; of the first word {moves[0]:.1e}")
    show_figure(say, "window")
    return Verdict(
        found == [3, 5, 9, words // 2 + 1, words],
        f"a convolution sees its window ({found[0]} or {found[1]} words) and each further layer two words more, an "
        f"LSTM all words up to its own ({found[3]}), one attention layer all {found[4]}",
    )


def fewer_weights(say: Say) -> Verdict:
    """127: a convolution beside the dense layer that equals it, under shifts, with pooling, and on new positions."""
    torch.manual_seed(0)
    convolution, dense = nn.Conv2d(1, 6, 5), nn.Linear(28 * 28, 6 * 24 * 24)
    counts = [parameter_count(layer) for layer in (convolution, dense)]
    shape = "28 x 28 pixels to 6 maps of 24 x 24"
    say(f"{shape}: {counts[0]:,} weights in a 5 x 5 convolution, {counts[1]:,} in a dense layer")
    image = torch.zeros(1, 1, 28, 28)
    image[..., 8:20, 8:20] = torch.randn(12, 12)
    with torch.inference_mode():
        layers: tuple[Layer, ...] = convolution, lambda x: dense(x.flatten(1)).view(1, 6, 24, 24)
        changes = [_change_by_shift(layer, image) for layer in layers]
        bias = convolution(torch.zeros(1, 1, 28, 28)).flatten()
        dense.weight.copy_((convolution(torch.eye(28 * 28).view(-1, 1, 28, 28)).flatten(1) - bias).T)
        dense.bias.copy_(bias)
        equal = max_difference(*(layer(image) for layer in layers))
        used = (dense.weight.abs() > 1e-6).float().mean().item()
        maxima = [convolution(each).amax((2, 3)) for each in (image, image.roll((3, 3), (2, 3)))]
    say(f"the dense layer that equals it (difference {equal:.0e}) has {used:.1%} weights that are not zero")
    moved = f"difference to the shifted output {changes[0]:.0e}, of a random dense layer {changes[1]:.1f}"
    say(f"image shifted by 3 pixels: {moved}")
    still = max_difference(*maxima)
    say(f"its maximum over all positions (global max pooling) changes by {still:.0e}")
    stacks = [nn.Sequential(nn.Conv2d(1, 1, 5), *pool, nn.Conv2d(1, 1, 5)) for pool in ((), (nn.AvgPool2d(2),))]
    plain, pooled = map(_seen_side, stacks)
    say(f"two 5 x 5 convolutions see {plain} x {plain} pixels, with 2 x 2 pooling between them {pooled} x {pooled}")
    found, curves = _pattern_accuracies()
    for name, (known, new) in found.items():
        say(f"one of two patterns in noise, {name}: accuracy {known:.0%}, at positions not seen in training {new:.0%}")
    caption = (
        "Accuracy by the position at which the pattern begins; in training it begins at 0 to 15. The weights of a "
        "convolution are those of every position, the dense layer has its own for each."
    )
    say.picture(lines(curves, across="position of the pattern", upward="accuracy"), caption)
    convolved, connected = (new for _, new in found.values())
    return Verdict(
        equal < 1e-4 and changes[0] < 1e-5 < changes[1] and still < 1e-5 and convolved > 0.9 > 0.7 > connected,
        f"a convolution has {counts[1] / counts[0]:,.0f} times fewer weights than a dense layer of the same shape; "
        f"shifted inputs give shifted outputs (difference {changes[0]:.0e}), and what it learned at some positions "
        f"holds at others ({convolved:.0%}; a dense layer: {connected:.0%})",
    )


def _change_by_shift(layer: Layer, image: Tensor) -> float:
    """How much shifting the input and shifting the output differ."""
    return max_difference(layer(image.roll((3, 3), (2, 3))), layer(image).roll((3, 3), (2, 3)))


def _seen_side(network: nn.Module) -> int:
    """Side of the square of pixels that one output depends on."""
    image = torch.randn(1, 1, 28, 28, requires_grad=True)
    (gradient,) = torch.autograd.grad(network(image)[0, 0, 3, 3], image)
    return int((gradient[0, 0].abs().sum(0) > 0).sum())


def _pattern_accuracies() -> tuple[dict[str, tuple[float, float]], dict[str, list[tuple[float, float]]]]:
    """Accuracy on patterns in the left half of a sequence, as in training, and in the right half; and by position."""
    torch.manual_seed(0)
    patterns = 2 * torch.randn(2, 8, 5)

    def examples(count: int, start: int, width: int = 16) -> tuple[Tensor, Tensor]:
        x, kinds = 0.5 * torch.randn(count, 8, 40), torch.randint(2, (count,))
        for row, position in enumerate(torch.randint(start, start + width, (count,)).tolist()):
            x[row, :, position : position + 5] += patterns[kinds[row]]
        return x, kinds

    networks = {
        "convolution and global max pooling": nn.Sequential(
            nn.Conv1d(8, 16, 5), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 2)
        ),
        "dense layer": nn.Sequential(nn.Flatten(), nn.Linear(8 * 40, 64), nn.ReLU(), nn.Linear(64, 2)),
    }
    found: dict[str, tuple[float, float]] = {}
    for name, network in networks.items():

        def loss(network: nn.Module = network) -> Tensor:
            x, kinds = examples(64, 0)
            return F.cross_entropy(network(x), kinds)

        minimize(loss, [*network.parameters()], 200, 3e-3)
        with torch.inference_mode():
            tests = examples(500, 0), examples(500, 20)
            known, new = (accuracy(network(x).argmax(1) == kinds) for x, kinds in tests)
        found[name] = known, new
    with torch.inference_mode():
        batches = [examples(200, position, 1) for position in range(36)]
        curves = {
            name.split(" and ")[0]: [
                (float(n), accuracy(network(x).argmax(1) == kinds)) for n, (x, kinds) in enumerate(batches)
            ]
            for name, network in networks.items()
        }
    return found, curves


def three_networks(say: Say) -> Verdict:
    """129: a layer of a CNN, an RNN and a Transformer: weights, words seen, paths, steps, multiplications and time."""
    torch.manual_seed(0)
    width, distance = 256, 32
    cell = nn.LSTMCell(width, width)
    convolution, block = ConvolutionFilters(width, {3: width}), _block(width)
    steps = 0

    def recurrent(x: Tensor) -> Tensor:
        nonlocal steps
        state, found = None, []
        for vectors in x.unbind(1):
            state = cell(vectors, state)
            found.append(state[0])
            steps += 1
        return torch.stack(found, 1)

    layers: tuple[Layer, ...] = convolution, recurrent, lambda x: block(x, None)
    weights = [parameter_count(module) for module in (convolution, cell, block)]
    seen = [_seen_words(layer, width, 41) for layer in layers]
    path = [_layers_between(layer, width, distance) for layer in layers]
    steps = 0
    recurrent(torch.randn(1, distance + 1, width))
    between = steps - 1
    products = {length: [_multiplications(layer, length, width) for layer in layers] for length in (64, 512, 2048)}
    times = {length: [_seconds(layer, length, width) for layer in layers] for length in (64, 512)}
    rows = {
        "weights": [f"{count:,}" for count in weights],
        "of 41 words, the middle one sees": [str(count) for count in seen],
        f"path between words {distance} apart": [f"{path[0]} layers", f"{between} steps", f"{path[2]} layer"],
        "steps in sequence for 512 words": ["1", "512", "1"],
        **{f"multiplications, {n:,} words": [f"{each / 1e6:,.0f}M" for each in found] for n, found in products.items()},
        **{f"milliseconds, {n} words": [f"{1e3 * each:.1f}" for each in found] for n, found in times.items()},
    }
    say(f"{f'one layer of width {width}':33}   CNN, 3 words     RNN (LSTM)    Transformer")
    for name, cells in rows.items():
        say(f"{name:33}" + "".join(f"{text:>15}" for text in cells))
    growth = [products[2048][column] / products[64][column] for column in range(3)]
    show_figure(say, "window")
    return Verdict(
        seen == [3, 21, 41] and path == [distance, 1, 1] and between == distance and growth[2] > 1.1 * max(growth[:2]),
        f"two words {distance} apart are {path[0]} layers apart in a CNN, {between} steps in an RNN and {path[2]} in "
        f"a Transformer, which pays with {growth[2]:.0f} times the multiplications for 32 times the words (the "
        f"others: {growth[0]:.0f} times)",
    )


def _block(width: int) -> TransformerBlock:
    return TransformerBlock(
        width=width, heads=4, hidden=4 * width, dropout=0.0, attention_dropout=0.0, activation="gelu", epsilon=1e-12
    ).eval()


def _multiplications(layer: Layer, length: int, width: int) -> int:
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        layer(torch.randn(1, length, width))
    return counter.get_total_flops() // 2  # a product and a sum each


def _seconds(layer: Layer, length: int, width: int) -> float:
    x = torch.randn(1, length, width)
    with torch.inference_mode():
        return shortest_time(lambda: layer(x))


def _seen_words(layer: Layer, width: int, count: int) -> int:
    """How many of these words the output of the middle one depends on."""
    x = torch.randn(1, count, width, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0, count // 2, 0], x)
    return int((gradient[0].abs().sum(-1) > 0).sum())


def _layers_between(layer: Layer, width: int, distance: int) -> int:
    """How many layers a word needs to depend on the word at this distance before it."""
    x = vectors = torch.randn(1, distance + 1, width, requires_grad=True)
    for count in range(1, distance + 1):
        vectors = layer(vectors)
        (gradient,) = torch.autograd.grad(vectors[0, -1, 0], x, retain_graph=True)
        if gradient[0, 0].any():
            return count
    raise AssertionError("a layer reaches at least one word further")
