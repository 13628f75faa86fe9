"""Claims about the attention of a network that writes: Bahdanau's."""

from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Finding, Say
from keel.claims.network_claims import learn
from keel.claims.small_models import pictures
from keel.data.token_batch import TokenBatch
from keel.explain.word_alignment import Alignment
from keel.report.heatmap import write_alignment
from keel.systems.seq2seq import AttentionSource, Seq2seqDecoder, Seq2seqEncoder, scaled_embeddings

NOUNS = {
    "house": "casa", "moon": "luna", "table": "mesa", "cow": "vaca", "door": "puerta", "star": "estrella",
    "book": "libro", "dog": "perro", "boat": "barco", "cat": "gato", "river": "río", "road": "camino",
}  # fmt: skip
ADJECTIVES = {"white": "blanc", "black": "negr", "small": "pequeñ", "new": "nuev", "red": "roj", "old": "viej"}
VERBS = {"sees": "ve", "has": "tiene", "likes": "quiere", "finds": "halla"}
EXAMPLE = (
    ["the", "white", "dog", "sees", "the", "red", "moon"],
    ["el", "perro", "blanco", "ve", "la", "luna", "roja"],
)
OPENING, CLOSING = "<s>", "</s>"


def three_looks(say: Say) -> Finding:
    """35: one row of ten things, one of which is asked for, by each of three kinds of attention."""
    right: dict[str, list[float]] = {}
    points = (10, 25, 100)
    say("share of questions answered rightly after    " + "".join(f"{steps:6} steps" for steps in points))
    for name in ("one place, drawn (2014)", "all places, additive (2014)", "all places, dot product (2017)"):
        right[name] = [_looked_up(name, steps) for steps in points]
        say(f"{name:42}" + "".join(f"{share:12.0%}" for share in right[name]))
    drawn, additive, dot = right.values()
    return Finding(
        min(additive[1], dot[1]) > 0.95 > drawn[1] and drawn[-1] > 0.5,
        f"after {points[1]} steps the network that draws the place of its look, and learns by reward, answers "
        f"{drawn[1]:.0%}; weighing all places has a gradient and answers {additive[1]:.0%}, and so does the dot "
        f"product ({dot[1]:.0%}) that the Transformer kept",
    )


def step_by_step(say: Say) -> Finding:
    """36: the five steps by hand for one word, then what a network that learned to translate looks at."""
    encoder, decoder, vocabulary = _translator()
    english, spanish = EXAMPLE
    found, source, hidden = _alignment(encoder, decoder, vocabulary, english, spanish)
    with torch.inference_mode():
        vectors = encoder(_rows(vocabulary, [english])).top[0]  # [source, width]: h_j
        s, y = source.first[0], scaled_embeddings(decoder.word_embeddings(), torch.tensor(vocabulary.index(OPENING)))
        assert decoder.query is not None
        assert decoder.weigh is not None
        energies = torch.stack([decoder.weigh @ (decoder.query(s) + decoder.key(h)).tanh() for h in vectors])
        alpha = energies.softmax(0)
        context = (alpha[:, None] * vectors).sum(0)
        after = decoder.cell(torch.cat([y, context]), s)
        scores = decoder.logits(decoder.answer(torch.cat([after, y, context])).tanh())
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
        one, other, true = _sentence(random, 2)
        looks = _alignment(encoder, decoder, vocabulary, one, other)[0].weights.argmax(1)
        hits, total = hits + sum(looks[place] == word for place, word in true.items()), total + len(true)
    say(f"nouns, adjectives and verbs of 50 new sentences: {hits} of {total} look at the word that they translate")
    say.progress(f"the picture: {write_alignment(pictures() / '036.html', [found])}")
    return Finding(
        apart < 1e-5 and hits > 0.9 * total,
        f"the five formulas are the network (to {apart:.0e}), and nobody told it which word is which: "
        f"{hits / total:.0%} of the words look at their own translation, across the changed order of words",
    )


def every_position(say: Say) -> Finding:
    """37: how many positions a step looks at, how many scores a text costs, and what is computed once."""
    torch.manual_seed(0)
    system = keel.Seq2seq(width=16, attention_dim=16, dropout=0.0)
    encoder = system.build_encoder(50).eval()
    decoder = system.build_decoder(encoder, 50).eval()
    keys: list[int] = []
    decoder.key.register_forward_hook(lambda module, given, value: keys.append(value.shape[0] * value.shape[1]))
    every, counts = True, {}
    say("source   target   scores   of them 0   keys computed")
    for length in (5, 10, 20, 40):
        rows = TokenBatch(ids=torch.randint(50, (1, length)), lengths=torch.tensor([length]))
        seen: list[Tensor] = []
        keys.clear()
        with torch.inference_mode():
            source = decoder.project_source(encoder(rows), rows)
            state = decoder.new_state(source, 1)
            for _ in range(length):  # as it writes: one word after the other
                ids = torch.randint(50, (1, 1))
                _, state = decoder(ids, source, state, record=lambda name, layer, value, seen=seen: seen.append(value))
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


def additive_score(say: Say) -> Finding:
    """40: w_v · tanh(W_q q + W_k k) for queries and keys of unequal length, and what its hidden size costs."""
    same, without_bias = 0.0, True
    say("query   key   hidden   parameters of the score   formula against the network")
    for hidden in (8, 32, 128):
        torch.manual_seed(0)
        system = keel.Seq2seq(width=20, attention_dim=hidden, dropout=0.0)
        encoder = system.build_encoder(30)
        decoder = system.build_decoder(encoder, 30)
        rows = TokenBatch(ids=torch.randint(30, (2, 7)), lengths=torch.tensor([7, 4]))
        assert decoder.query is not None
        assert decoder.weigh is not None
        without_bias &= decoder.query.bias is None and decoder.key.bias is None
        with torch.inference_mode():
            output = encoder(rows)
            source, queries = decoder.project_source(output, rows), torch.randn(2, 20)
            found = decoder.energies(decoder.query(queries)[:, None], source)[:, 0]
            plain = torch.stack([
                torch.stack([decoder.weigh @ (decoder.query.weight @ q + decoder.key.weight @ k).tanh() for k in keys])
                for q, keys in zip(queries, output.top, strict=True)
            ])  # fmt: skip
        same = max(same, (found - plain).abs().max().item())
        size = decoder.query.weight.numel() + decoder.key.weight.numel() + decoder.weigh.numel()
        say(f"{20:5}   {encoder.width:3}   {hidden:6}   {size:23,}   {(found - plain).abs().max().item():.0e}")
    return Finding(
        same < 1e-5 and without_bias,
        f"the score is the formula (to {same:.0e}) and has no bias; queries and keys may differ in length, which a dot "
        "product cannot, and the hidden size is free: (20 + 40 + 1) parameters for each of its numbers",
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

    learn(loss, weights, steps, 1e-2)
    with torch.inference_mode():
        order, told, asked, right = rows(2000)
        found = scores(order, asked).softmax(1)
        if "drawn" in kind:
            return (told.gather(1, torch.multinomial(found, 1))[:, 0] == right).float().mean().item()
        return (chances(found, told).argmax(1) == right).float().mean().item()


def _sentence(random: Random, things: int) -> tuple[list[str], list[str], dict[int, int]]:
    """The white dog sees the red moon and ...; the same in another order of words; and of each noun, adjective and verb
    there the word that it translates. (An article may look at its noun, whose gender it has.)"""
    english: list[str] = []
    spanish: list[str] = []
    true: dict[int, int] = {}
    for thing in range(things):
        noun, adjective, verb = (random.choice([*words]) for words in (NOUNS, ADJECTIVES, VERBS))
        if thing:
            true[len(spanish)] = len(english)
            english.append(verb if thing == 1 else "and")
            spanish.append(VERBS[verb] if thing == 1 else "y")
        ending = "a" if NOUNS[noun].endswith("a") else "o"
        true |= {len(spanish) + 1: len(english) + 2, len(spanish) + 2: len(english) + 1}
        english += ["the", adjective, noun]
        spanish += ["la" if ending == "a" else "el", NOUNS[noun], ADJECTIVES[adjective] + ending]
    return english, spanish, true


def _translator() -> tuple[Seq2seqEncoder, Seq2seqDecoder, list[str]]:
    """A network that has learned such sentences, and the words of both languages."""
    random = Random(0)
    known = [_sentence(random, 3) for _ in range(1000)]
    vocabulary = [OPENING, CLOSING, *sorted({word for *texts, _ in known for text in texts for word in text})]
    torch.manual_seed(0)
    system = keel.Seq2seq(width=48, attention_dim=48, dropout=0.0)
    encoder = system.build_encoder(len(vocabulary))
    decoder = system.build_decoder(encoder, len(vocabulary))

    def loss() -> Tensor:
        things = random.randint(2, 3)
        batch = [_sentence(random, things) for _ in range(32)]
        rows = _rows(vocabulary, [english for english, _, _ in batch])
        target = _rows(vocabulary, [[OPENING, *spanish] for _, spanish, _ in batch]).ids
        vectors, _ = decoder(target[:, :-1], decoder.project_source(encoder(rows), rows))
        return F.cross_entropy(decoder.logits(vectors).flatten(0, 1), target[:, 1:].flatten())

    learn(loss, [*encoder.parameters(), *decoder.parameters()], 250, 1e-2)
    return encoder.eval(), decoder.eval(), vocabulary


def _rows(vocabulary: list[str], texts: list[list[str]]) -> TokenBatch:
    return TokenBatch.pad([[vocabulary.index(word) for word in [*text, CLOSING]] for text in texts])


@torch.inference_mode()
def _alignment(
    encoder: Seq2seqEncoder, decoder: Seq2seqDecoder, vocabulary: list[str], english: list[str], spanish: list[str]
) -> tuple[Alignment, AttentionSource, Tensor]:
    """What each word looks at, with what is kept of the source and the state after the first word."""
    rows = _rows(vocabulary, [english])
    source = decoder.project_source(encoder(rows), rows)
    seen: list[Tensor] = []
    ids = _rows(vocabulary, [[OPENING, *spanish]]).ids[:, :-1]
    decoder(ids, source, record=lambda name, layer, value: seen.append(value))
    _, state = decoder(ids[:, :1], source)
    return Alignment([*english, CLOSING], [*spanish, CLOSING], seen[0][0].numpy()), source, state.hidden[0]
