"""Claims about attention before the Transformer: who looks at what, and how it is scored."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from xml.etree.ElementTree import Element

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.finding import Finding, Say
from keel.explain.alignment import Alignment
from keel.language import write_alignment
from keel.report import Page, draw_grid, lines
from keel.systems.base import Rows
from keel.systems.seq2seq import Seq2seqDecoder, Seq2seqEncoder, Source
from keel.text.tokens import cache_folder

NOUNS = {
    "house": "casa", "moon": "luna", "table": "mesa", "cow": "vaca",
    "book": "libro", "dog": "perro", "bread": "pan", "boat": "barco",
}  # fmt: skip
ADJECTIVES = {"white": "blanc", "black": "negr", "small": "pequeñ", "new": "nuev", "red": "roj"}
VERBS = {"sees": "ve", "has": "tiene", "likes": "quiere", "finds": "halla"}
ORDER = (0, 2, 1, 3, 4, 6, 5)
"""Which word of "the white dog sees the red moon" each of "el perro blanco ve la luna roja" is."""
OPENING, CLOSING = "<s>", "</s>"


def three_looks(say: Say) -> Finding:
    """35: one row of ten things, one of which is asked for, by each of three kinds of attention."""
    right: dict[str, list[float]] = {}
    points = (25, 100, 400)
    say("share of questions answered rightly after    " + "".join(f"{steps:6} steps" for steps in points))
    for name in ("one place, drawn (2014)", "all places, additive (2014)", "all places, dot product (2017)"):
        right[name] = [_looked_up(name, steps) for steps in points]
        say(f"{name:42}" + "".join(f"{share:12.0%}" for share in right[name]))
    drawn, additive, dot = (shares[-1] for shares in right.values())
    return Finding(
        min(additive, dot) > 0.95 and drawn < min(additive, dot),
        f"after {points[-1]} steps the network that draws the place of its look, and learns by reward, answers "
        f"{drawn:.0%}; weighing all places has a gradient and answers {additive:.0%}, and so does the dot product "
        f"({dot:.0%}) that the Transformer kept",
    )


def step_by_step(say: Say) -> Finding:
    """36: the five steps by hand for one word, then what a network that learned to translate looks at."""
    encoder, decoder, vocabulary = _translator()
    english, spanish = "the white dog sees the red moon".split(), "el perro blanco ve la luna roja".split()
    found, source, hidden = _alignment(encoder, decoder, vocabulary, english, spanish)
    with torch.inference_mode():
        vectors = encoder(_rows(vocabulary, [english])).top[0]  # [source, width]: h_j
        s, y = source.first[0], decoder.words.weight[vocabulary.index(OPENING)]
        assert decoder.query is not None
        assert decoder.weigh is not None
        energies = torch.stack([decoder.weigh @ (decoder.query(s) + decoder.key(h)).tanh() for h in vectors])
        alpha = energies.softmax(0)
        context = (alpha[:, None] * vectors).sum(0)
        after = decoder.cell(torch.cat([y, context]), s)
        scores = decoder.scores(decoder.answer(torch.cat([after, y, context])).tanh())
    say(f"score(s_0, h_j): {len(energies)} numbers, one for each word of the source and its end")
    say(f"softmax over j: {', '.join(f'{share:.2f}' for share in alpha.tolist())}, together {alpha.sum():.2f}")
    say(f"c_1, the sum of the h_j by these weights: {list(context.shape)}; s_1 = f(s_0, y_0, c_1): {list(after.shape)}")
    say(f"the likeliest first word: {vocabulary[int(scores.argmax())]!r} ({scores.softmax(0).max():.0%})")
    apart = max((alpha - torch.from_numpy(found.weights[0])).abs().max().item(), (after - hidden).abs().max().item())
    say(f"weights and state by hand against the network's: {apart:.0e}")
    for line in found.lines():
        say(line)
    random = Random(1)
    hits = total = 0
    for _ in range(50):
        pair = _sentence(random)
        looks = _alignment(encoder, decoder, vocabulary, *pair)[0].weights.argmax(1)
        for place in (1, 2, 3, 5, 6):  # an article may look at its noun, whose gender it has
            hits, total = hits + (looks[place] == ORDER[place]), total + 1
    say(f"nouns, adjectives and verbs of 50 new sentences: {hits} of {total} look at the word that they translate")
    say.progress(f"the picture: {write_alignment(_folder() / '036.html', [found])}")
    return Finding(
        apart < 1e-5 and hits > 0.9 * total,
        f"the five formulas are the network (to {apart:.0e}), and nobody told it which word is which: {hits / total:.0%} "
        "of the words look at their own translation, across the changed order of noun and adjective",
    )


def every_position(say: Say) -> Finding:
    """37: how many positions a step looks at, how many scores a text costs, and what is computed once."""
    torch.manual_seed(0)
    system = keel.Seq2seq(width=16, hidden=16, dropout=0.0)
    encoder = system.encoder(50).eval()
    decoder = system.decoder(encoder, 50).eval()
    keys: list[int] = []
    decoder.key.register_forward_hook(lambda module, given, value: keys.append(value.shape[0] * value.shape[1]))
    every, counts = True, {}
    say("source   target   scores   of them 0   keys computed")
    for length in (5, 10, 20, 40):
        rows = Rows(ids=torch.randint(50, (1, length)), lengths=torch.tensor([length]))
        seen: list[Tensor] = []
        keys.clear()
        with torch.inference_mode():
            source = decoder.read(encoder(rows), rows)
            state = decoder.begin(source, 1)
            for _ in range(length):  # as it writes: one word after the other
                ids = torch.randint(50, (1, 1))
                _, state = decoder(ids, source, state, record=lambda name, layer, value: seen.append(value))
        alphas = torch.cat(seen, 1)
        every &= bool((alphas > 0).all()) and alphas.shape[1:] == (length, length) and sum(keys) == length
        counts[length] = alphas.numel()
        none = int((alphas == 0).sum())
        say(f"{length:6}   {length:6}   {alphas.numel():6}   {none:9}   {sum(keys):13}")
    return Finding(
        every and counts[40] == 64 * counts[5],
        f"every step weighs every position: {counts[40]:,} scores for 40 words from 40, 64 times those for 5 from 5; "
        "the products W_k h_j alone are computed once for each text",
    )


def kernel_regression(say: Say) -> Finding:
    """38: a curve through noisy points, by attention: the query is where one asks, keys and values are the points."""
    torch.manual_seed(0)
    keys = (torch.rand(50) * 5).sort().values
    queries = torch.arange(0, 5, 0.1)

    def curve(x: Tensor) -> Tensor:
        return 2 * x.sin() + x**0.8

    values = curve(keys) + torch.randn(50) * 0.5
    width = torch.ones(1)

    def weights(asked: Tensor, known: Tensor) -> Tensor:
        return (-0.5 * ((asked[:, None] - known) * width) ** 2).softmax(1)

    def miss(told: Tensor) -> float:
        return (told - curve(queries)).square().mean().item()

    mean = miss(values.mean().expand(50))
    plain_weights = weights(queries, keys)
    plain = miss(plain_weights @ values)
    others = ~torch.eye(50, dtype=torch.bool)  # a point may not look at itself, or it would learn nothing else

    def own() -> Tensor:
        scores = -0.5 * ((keys[:, None] - keys) * width) ** 2
        return (scores.masked_fill(~others, -torch.inf).softmax(1) @ values - values).square().mean()

    _learn(own, [width], 300, 0.05)
    width.requires_grad_(False)
    learned_weights = weights(queries, keys)
    learned = miss(learned_weights @ values)
    say("all points alike, whoever asks (no cue): mean squared error " + f"{mean:.3f}")
    say(f"by nearness, softmax(-(q - k)² / 2) over the keys (Nadaraya 1964, Watson 1964): {plain:.3f}")
    say(f"by nearness times a weight that was learned ({width.item():.2f}): {learned:.3f}")
    say(f"the ten nearest keys get {_nearest(plain_weights, queries, keys):.0%}, with the learned weight "
        f"{_nearest(learned_weights, queries, keys):.0%}")  # fmt: skip
    truth = list(zip(queries.tolist(), curve(queries).tolist(), strict=True))
    told = list(zip(queries.tolist(), (learned_weights @ values).tolist(), strict=True))
    grid = draw_grid([f"{x:.1f}" for x in keys[::2].tolist()], [f"{x:.1f}" for x in queries[::2].tolist()],
                     (learned_weights / learned_weights.max())[::2, ::2].numpy())  # fmt: skip
    path = _page(
        "038.html",
        "Attention pooling",
        {
            "What attention tells (first) and the curve that the points were drawn from.": lines(
                {"told": told, "truth": truth}, across="x", upward="y"
            ),
            "How much each point (across) weighs for each question (down).": grid,
        },
    )
    say.progress(f"the picture: {path}")
    return Finding(
        learned < plain < mean,
        f"a cue makes the difference: the error is {mean:.2f} where all points weigh alike, {plain:.2f} by nearness to "
        f"the query and {learned:.2f} where nearness is learned",
    )


def weighted_values(say: Say) -> Finding:
    """39: f(q, (k, v)) by its definition, for scores of several kinds, against the fused kernel for one of them."""
    torch.manual_seed(0)
    query, keys, values = torch.randn(8), torch.randn(6, 8), torch.randn(6, 3)
    matrix = torch.randn(8, 8)
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "q·k/√d": lambda key: query @ key / 8**0.5,
        "q·Wk": lambda key: query @ matrix @ key,
        "-|q - k|²/2": lambda key: -0.5 * (query - key).square().sum(),
    }
    inside = True
    for name, score in kinds.items():
        alpha = torch.stack([score(key) for key in keys]).softmax(0)
        value = sum(alpha[i] * values[i] for i in range(6))
        assert isinstance(value, Tensor)
        inside &= bool((alpha > 0).all()) and abs(alpha.sum().item() - 1) < 1e-6
        inside &= bool(((value >= values.amin(0)) & (value <= values.amax(0))).all())
        say(f"score {name:12} weights {', '.join(f'{share:.2f}' for share in alpha.tolist())}; sum {alpha.sum():.2f}")
    alpha = torch.stack([kinds["q·k/√d"](key) for key in keys]).softmax(0)
    fused = F.scaled_dot_product_attention(query[None, None], keys[None], values[None])[0, 0]
    apart = (alpha @ values - fused).abs().max().item()
    say(f"the sum over i of α(q, k_i) v_i against torch's own attention: {apart:.0e}")
    return Finding(
        inside and apart < 1e-5,
        "whatever scores, the weights are positive and sum to 1, so that the result is a mean of the values and lies "
        f"between them; the definition is what fused kernels compute (to {apart:.0e})",
    )


def additive_score(say: Say) -> Finding:
    """40: w_v · tanh(W_q q + W_k k) for queries and keys of unequal length, and what its hidden size costs."""
    same, without_bias = 0.0, True
    say("query   key   hidden   parameters of the score   formula against the network")
    for hidden in (8, 32, 128):
        torch.manual_seed(0)
        system = keel.Seq2seq(width=20, hidden=hidden, dropout=0.0)
        encoder = system.encoder(30)
        decoder = system.decoder(encoder, 30)
        rows = Rows(ids=torch.randint(30, (2, 7)), lengths=torch.tensor([7, 4]))
        assert decoder.query is not None
        assert decoder.weigh is not None
        without_bias &= decoder.query.bias is None and decoder.key.bias is None
        with torch.inference_mode():
            output = encoder(rows)
            source, queries = decoder.read(output, rows), torch.randn(2, 20)
            found = decoder.energies(decoder.query(queries)[:, None], source)[:, 0]
            plain = torch.stack([
                torch.stack([decoder.weigh @ (decoder.query.weight @ q + decoder.key.weight @ k).tanh() for k in keys])
                for q, keys in zip(queries, output.top, strict=True)
            ])  # fmt: skip
        same = max(same, (found - plain).abs().max().item())
        size = decoder.query.weight.numel() + decoder.key.weight.numel() + decoder.weigh.numel()
        say(f"{20:5}   {encoder.width:3}   {hidden:6}   {size:23,}   {(found - plain).abs().max().item():.0e}")
    try:
        torch.randn(20) @ torch.randn(40)
        alike = True
    except RuntimeError:
        alike = False
    say(f"q·k of a query of 20 and a key of 40 numbers exists: {'yes' if alike else 'no'}")
    return Finding(
        same < 1e-5 and without_bias and not alike,
        f"the score is the formula (to {same:.0e}) and has no bias; queries and keys may differ in length, which a dot "
        "product cannot, and the hidden size is free: (20 + 40 + 1) parameters for each of its numbers",
    )


def in_batches(say: Say) -> Finding:
    """42: n queries, m keys and values at once: softmax(Q K^T / √d) V is n x v."""
    torch.manual_seed(0)
    n, m, d, v = 300, 400, 64, 48
    queries, keys, values = torch.randn(n, d), torch.randn(m, d), torch.randn(m, v)

    def one_by_one() -> Tensor:
        return torch.stack([(keys @ query / d**0.5).softmax(0) @ values for query in queries])

    def at_once() -> Tensor:
        return (queries @ keys.T / d**0.5).softmax(1) @ values

    apart = (one_by_one() - at_once()).abs().max().item()
    times = [min(_seconds(way) for _ in range(5)) for way in (one_by_one, at_once)]
    say(f"Q {n} x {d}, K {m} x {d}, V {m} x {v}: the result is {' x '.join(map(str, at_once().shape))}")
    say(f"query by query and all at once differ by {apart:.0e}")
    say(f"the three products at once take 1/{times[0] / times[1]:.0f} of the time")
    return Finding(
        at_once().shape == (n, v) and apart < 1e-5,
        f"the result is n x v whatever m and d are, and the same as query by query (to {apart:.0e})",
    )


def aligned_question(say: Say) -> Finding:
    """43: Attention(X, X, X), and a passage whose words look at the question: is a synonym of this word asked for?"""
    torch.manual_seed(0)
    words, width, passage, question, count = 400, 64, 20, 6, 500
    base = torch.randn(words // 2, width)
    table = F.normalize(base.repeat_interleave(2, 0) + 0.5 * torch.randn(words, width), dim=1)  # 2n, 2n + 1: synonyms
    x = table[torch.randint(words, (1, passage))]
    own = F.scaled_dot_product_attention(x, x, x)
    say(f"self-attention, Attention(X, X, X): X {list(x.shape[1:])}, result {list(own.shape[1:])}")
    asked = torch.stack(
        [torch.randperm(words // 2)[:question] * 2 + torch.randint(2, (question,)) for _ in range(count)]
    )
    texts = torch.randint(words, (count, passage))
    known = torch.rand(count, passage) < 0.3
    picked = asked.gather(1, torch.randint(question, (count, passage)))
    texts = torch.where(known, picked ^ 1, texts)  # the other word of the pair: equal letters would be no test
    truth = (texts[:, :, None] // 2 == asked[:, None] // 2).any(2)
    q, k = table[texts], table[asked]
    aligned = ((q @ k.mT) * 10).softmax(-1) @ k  # Q = passage, K = V = question
    say(f"aligned question: Q {list(q.shape[1:])}, K = V {list(k.shape[1:])}, result {list(aligned.shape[1:])}")
    named = {}
    for name, features in (("the word alone", q), ("word times aligned question", q * aligned)):
        named[name] = _linear(features, truth)
        say(f"a linear rule on {name}: {named[name]:.0%} of the words told (of the asked and the others half each)")
    alone, both = named.values()
    return Finding(
        aligned.shape == q.shape and both > 0.9 > 0.6 > alone,
        f"one formula, and who asks whom is free: with Q the passage and K = V the question every word of the passage "
        f"has a vector of the question beside it, by which {both:.0%} are told that are asked for in other words "
        f"({alone:.0%} without)",
    )


def _looked_up(kind: str, steps: int) -> float:
    """The share of new rows of ten (key, answer) pairs where a network of this kind answers what is asked for."""
    torch.manual_seed(0)
    names, answers, width = 10, 8, 32
    table = torch.randn(names, width)
    ask, hold, weigh = torch.randn(width, width) * 0.2, torch.randn(width, width) * 0.2, torch.randn(width) * 0.2
    weights = [ask, hold] if "dot" in kind else [ask, hold, weigh]

    def rows(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        order = torch.rand(count, names).argsort(1)  # which thing stands where
        told = torch.randint(answers, (count, names))
        asked = torch.randint(names, (count,))
        place = (order == asked[:, None]).int().argmax(1)
        return order, told, asked, told.gather(1, place[:, None])[:, 0]

    def scores(order: Tensor, asked: Tensor) -> Tensor:
        queries, keys = table[asked] @ ask, table[order] @ hold
        if "dot" in kind:
            return (keys @ queries[:, :, None])[:, :, 0] / width**0.5
        return (queries[:, None] + keys).tanh() @ weigh

    def chances(alpha: Tensor, told: Tensor) -> Tensor:
        return (alpha[:, :, None] * F.one_hot(told, answers)).sum(1)

    def loss() -> Tensor:
        order, told, asked, right = rows(64)
        found = scores(order, asked)
        if "drawn" not in kind:
            return -chances(found.softmax(1), told).gather(1, right[:, None]).clamp(min=1e-6).log().mean()
        place = torch.multinomial(found.detach().softmax(1), 1)  # a place is looked at, or it is not: no gradient
        reward = (told.gather(1, place)[:, 0] == right).float()
        return -((reward - reward.mean()) * found.log_softmax(1).gather(1, place)[:, 0]).mean()

    _learn(loss, weights, steps, 1e-2)
    with torch.inference_mode():
        order, told, asked, right = rows(2000)
        found = scores(order, asked).softmax(1)
        if "drawn" in kind:
            return (told.gather(1, torch.multinomial(found, 1))[:, 0] == right).float().mean().item()
        return (chances(found, told).argmax(1) == right).float().mean().item()


def _learn(loss: Callable[[], Tensor], weights: Sequence[Tensor], steps: int, rate: float) -> None:
    """Move weights down the gradient of a loss by Adam."""
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.Adam(weights, lr=rate)
    for _ in range(steps):
        for weight, gradient in zip(weights, torch.autograd.grad(loss(), weights), strict=True):
            weight.grad = gradient
        optimizer.step()


def _sentence(random: Random) -> tuple[list[str], list[str]]:
    """The white dog sees the red moon, and the same in another order of words."""
    english, spanish = [], []
    for part in range(2):
        noun, adjective, verb = (random.choice([*words]) for words in (NOUNS, ADJECTIVES, VERBS))
        feminine = NOUNS[noun].endswith("a")
        english += ["the", adjective, noun, *([verb] if part == 0 else [])]
        spanish += ["la" if feminine else "el", NOUNS[noun], ADJECTIVES[adjective] + ("a" if feminine else "o")]
        spanish += [VERBS[verb]] if part == 0 else []
    return english, spanish


def _translator() -> tuple[Seq2seqEncoder, Seq2seqDecoder, list[str]]:
    """A network that has learned such sentences, and the words of both languages."""
    random = Random(0)
    pairs = [_sentence(random) for _ in range(32 * 120)]
    words = sorted({word for pair in pairs for text in pair for word in text})
    vocabulary = [OPENING, CLOSING, *words]
    torch.manual_seed(0)
    system = keel.Seq2seq(width=32, hidden=32, dropout=0.0)
    encoder = system.encoder(len(vocabulary))
    decoder = system.decoder(encoder, len(vocabulary))
    batches = iter([pairs[start : start + 32] for start in range(0, len(pairs), 32)])

    def loss() -> Tensor:
        batch = next(batches)
        rows = _rows(vocabulary, [english for english, _ in batch])
        target = _rows(vocabulary, [[OPENING, *spanish] for _, spanish in batch]).ids
        vectors, _ = decoder(target[:, :-1], decoder.read(encoder(rows), rows))
        return F.cross_entropy(decoder.scores(vectors).flatten(0, 1), target[:, 1:].flatten())

    _learn(loss, [*encoder.parameters(), *decoder.parameters()], 120, 1e-2)
    return encoder.eval(), decoder.eval(), vocabulary


def _rows(vocabulary: list[str], texts: list[list[str]]) -> Rows:
    return Rows.pad([[vocabulary.index(word) for word in [*text, CLOSING]] for text in texts])


@torch.inference_mode()
def _alignment(
    encoder: Seq2seqEncoder, decoder: Seq2seqDecoder, vocabulary: list[str], english: list[str], spanish: list[str]
) -> tuple[Alignment, Source, Tensor]:
    """What each word looks at, with what is kept of the source and the state after the first word."""
    rows = _rows(vocabulary, [english])
    source = decoder.read(encoder(rows), rows)
    seen: list[Tensor] = []
    ids = _rows(vocabulary, [[OPENING, *spanish]]).ids[:, :-1]
    decoder(ids, source, record=lambda name, layer, value: seen.append(value))
    _, state = decoder(ids[:, :1], source)
    return Alignment([*english, CLOSING], [*spanish, CLOSING], seen[0][0].numpy()), source, state.hidden[0]


def _nearest(weights: Tensor, queries: Tensor, keys: Tensor) -> float:
    """The share of the weight that goes to the ten keys nearest to a query."""
    near = (queries[:, None] - keys).abs().topk(10, largest=False).indices
    return weights.gather(1, near).sum(1).mean().item()


def _linear(features: Tensor, truth: Tensor) -> float:
    """The share, yes and no weighing alike, that a linear rule tells rightly, learned from every second row."""
    inputs, answers = F.pad(features, (0, 1), value=1.0), truth.float() * 2 - 1
    balance = torch.where(truth, 1 / truth.float().mean(), 1 / (1 - truth.float().mean())).sqrt()
    rule = torch.linalg.lstsq(
        (inputs * balance[..., None])[::2].flatten(0, 1), (answers * balance)[::2].flatten()[:, None]
    ).solution
    told = (inputs[1::2] @ rule)[..., 0] > 0
    right = told == truth[1::2]
    return (right[truth[1::2]].float().mean().item() + right[~truth[1::2]].float().mean().item()) / 2


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _folder() -> Path:
    """Where pictures of experiments are kept."""
    folder = cache_folder() / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _page(name: str, title: str, figures: dict[str, Element]) -> Path:
    page = Page(title)
    for caption, picture in figures.items():
        page.figure(picture, caption)
    return page.write(_folder() / name)
