"""Claims about Bahdanau's attention."""

from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import accuracy, batch_of, join_values, max_difference, minimize
from keel.data.token_batch import TokenBatch
from keel.explain.word_alignment import Alignment
from keel.report.charts import heat_map
from keel.systems.seq2seq import AttentionSource, Seq2seqDecoder, Seq2seqEncoder, scaled_embeddings

NOUNS = {
    "house": "casa", "moon": "luna", "table": "mesa", "cow": "vaca", "door": "puerta", "star": "estrella",
    "book": "libro", "dog": "perro", "boat": "barco", "cat": "gato", "river": "río", "road": "camino",
}  # fmt: skip
ADJECTIVES = {"white": "blanc", "black": "negr", "small": "pequeñ", "new": "nuev", "red": "roj", "old": "viej"}
VERBS = {"sees": "ve", "has": "tiene", "likes": "quiere", "finds": "halla"}
EXAMPLE = (["the", "white", "dog", "sees", "the", "red", "moon"], ["el", "perro", "blanco", "ve", "la", "luna", "roja"])
BOS, EOS = "<s>", "</s>"


def three_attentions(say: Say) -> Verdict:
    """35: retrieval of one of ten items by three kinds of attention."""
    right: list[list[float]] = []
    points = (10, 25, 100)
    say("accuracy after                               " + "".join(f"{steps:6} steps" for steps in points))
    kinds = ("hard attention, sampled", 2014), ("soft attention, additive", 2014), ("soft attention, dot product", 2017)
    for kind, year in kinds:
        right.append([_retrieval_accuracy(kind, steps) for steps in points])
        say(f"{f'{kind} ({year})':42}" + "".join(f"{share:12.0%}" for share in right[-1]))
    sampled, additive, dot = right
    return Verdict(
        min(additive[1], dot[1]) > 0.95 > sampled[1] and sampled[-1] > 0.5,
        f"after {points[1]} steps hard attention, trained by REINFORCE, reaches {sampled[1]:.0%}; soft attention has a "
        f"gradient and reaches {additive[1]:.0%} with additive scores and {dot[1]:.0%} with the dot product of the "
        "Transformer",
    )


def step_by_step(say: Say) -> Verdict:
    """36: the five formulas by hand for one word, then the alignment of a trained network."""
    encoder, decoder, vocabulary = _translator()
    english, spanish = EXAMPLE
    found, source, hidden = _alignment(encoder, decoder, vocabulary, english, spanish)
    with torch.inference_mode():
        vectors = encoder(_batch(vocabulary, [english])).top[0]  # [source, width]: h_j
        s, y = source.first[0], scaled_embeddings(decoder.word_embeddings(), torch.tensor(vocabulary.index(BOS)))
        assert decoder.query is not None
        assert decoder.weigh is not None
        energies = torch.stack([decoder.weigh @ (decoder.query(s) + decoder.key(h)).tanh() for h in vectors])
        alpha = energies.softmax(0)
        context = (alpha[:, None] * vectors).sum(0)
        after = decoder.cell(torch.cat([y, context]), s)
        scores = decoder.logits(decoder.answer(torch.cat([after, y, context])).tanh())
    say(f"score(s_0, h_j): {len(energies)} numbers, one per source token, end token included")
    say(f"softmax over j: {join_values(alpha.tolist())}, sum {alpha.sum():.2f}")
    say(f"c_1, the weighted sum of the h_j: {list(context.shape)}; s_1 = f(s_0, y_0, c_1): {list(after.shape)}")
    say(f"most probable first word: {vocabulary[int(scores.argmax())]!r} ({scores.softmax(0).max():.0%})")
    difference = max(max_difference(alpha, torch.from_numpy(found.weights[0])), max_difference(after, hidden))
    say(f"weights and state by hand against the network: difference {difference:.0e}")
    for line in found.lines():
        say(line)
    random = Random(1)
    hits = total = 0
    for _ in range(50):
        one, other, true = _sentence(random, 2)
        looks = _alignment(encoder, decoder, vocabulary, one, other)[0].weights.argmax(1)
        hits, total = hits + sum(looks[position] == word for position, word in true.items()), total + len(true)
    say(f"nouns, adjectives and verbs of 50 new sentences: {hits} of {total} attend most to the word they translate")
    caption = "Attention to the source (columns) for each generated word (rows); darker is more."
    say.picture(heat_map(found.source, found.target, found.weights), caption)
    return Verdict(
        difference < 1e-5 and hits > 0.9 * total,
        f"the five formulas equal the network (difference {difference:.0e}), and without alignment labels "
        f"{hits / total:.0%} of the words attend most to their translation, across the changed word order",
    )


def every_position(say: Say) -> Verdict:
    """37: attention weights and scores per decoder step, and what is computed once per text."""
    encoder, decoder = _random_seq2seq(16, 16, 50)
    keys: list[int] = []
    decoder.key.register_forward_hook(lambda module, given, value: keys.append(value.shape[0] * value.shape[1]))
    every, counts = True, {}
    say("source   target   scores   zero weights   keys computed")
    for length in (5, 10, 20, 40):
        batch = batch_of(torch.randint(50, (1, length)))
        seen: list[Tensor] = []
        keys.clear()
        with torch.inference_mode():
            source = decoder.project_source(encoder(batch), batch)
            state = decoder.new_state(source, 1)
            for _ in range(length):  # as in decoding, one token at a time
                ids = torch.randint(50, (1, 1))
                _, state = decoder(ids, source, state, record=lambda name, layer, value, seen=seen: seen.append(value))
        alphas = torch.cat(seen, 1)
        every &= bool((alphas > 0).all()) and alphas.shape[1:] == (length, length) and sum(keys) == length
        counts[length] = alphas.numel()
        none = int((alphas == 0).sum())
        say(f"{length:6}   {length:6}   {alphas.numel():6}   {none:12}   {sum(keys):13}")
    return Verdict(
        every and counts[40] == 64 * counts[5],
        f"every step attends to every position: {counts[40]:,} scores for 40 source and 40 target words, 64 times "
        "those for 5 and 5; only the keys W_k h_j are computed once per text",
    )


def additive_score(say: Say) -> Verdict:
    """40: w_v · tanh(W_q q + W_k k) for queries and keys of different sizes, and its number of parameters."""
    same, without_bias = 0.0, True
    say("query   key   hidden   parameters of the score   difference to the formula")
    for hidden in (8, 32, 128):
        encoder, decoder = _random_seq2seq(20, hidden, 30)
        batch = TokenBatch(ids=torch.randint(30, (2, 7)), lengths=torch.tensor([7, 4]))
        assert decoder.query is not None
        assert decoder.weigh is not None
        without_bias &= decoder.query.bias is None and decoder.key.bias is None
        with torch.inference_mode():
            output = encoder(batch)
            source, queries = decoder.project_source(output, batch), torch.randn(2, 20)
            found = decoder.energies(decoder.query(queries)[:, None], source)[:, 0]
            plain = torch.stack([
                torch.stack([decoder.weigh @ (decoder.query.weight @ q + decoder.key.weight @ k).tanh() for k in keys])
                for q, keys in zip(queries, output.top, strict=True)
            ])  # fmt: skip
        difference = max_difference(found, plain)
        same = max(same, difference)
        size = decoder.query.weight.numel() + decoder.key.weight.numel() + decoder.weigh.numel()
        say(f"{20:5}   {encoder.width:3}   {hidden:6}   {size:23,}   {difference:.0e}")
    return Verdict(
        same < 1e-5 and without_bias,
        f"the score equals the formula (difference {same:.0e}) and has no bias; queries and keys may differ in size, "
        "unlike for a dot product, and the hidden size h is free: h (20 + 40 + 1) parameters",
    )


def _retrieval_accuracy(kind: str, steps: int) -> float:
    """Accuracy on new sequences of ten (key, answer) pairs, one of which is queried."""
    torch.manual_seed(0)
    names, answers, width = 10, 8, 32
    table = torch.randn(names, width)
    ask, hold, weigh = torch.randn(width, width) * 0.2, torch.randn(width, width) * 0.2, torch.randn(width) * 0.2
    weights = [ask, hold] if "dot" in kind else [ask, hold, weigh]

    def examples(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        order = torch.rand(count, names).argsort(1)  # order of the items
        values = torch.randint(answers, (count, names))
        queried = torch.randint(names, (count,))
        position = (order == queried[:, None]).int().argmax(1)
        return order, values, queried, values.gather(1, position[:, None])[:, 0]

    def scores(order: Tensor, queried: Tensor) -> Tensor:
        queries, keys = table[queried] @ ask, table[order] @ hold
        if "dot" in kind:
            return (keys @ queries[:, :, None])[:, :, 0] / width**0.5
        return (queries[:, None] + keys).tanh() @ weigh

    def probabilities(alpha: Tensor, values: Tensor) -> Tensor:
        return (alpha[:, :, None] * F.one_hot(values, answers)).sum(1)

    def loss() -> Tensor:
        order, values, queried, right = examples(64)
        found = scores(order, queried)
        if "hard" not in kind:
            return -probabilities(found.softmax(1), values).gather(1, right[:, None]).clamp(min=1e-6).log().mean()
        position = torch.multinomial(found.detach().softmax(1), 1)  # sampling has no gradient
        reward = (values.gather(1, position)[:, 0] == right).float()
        return -((reward - reward.mean()) * found.log_softmax(1).gather(1, position)[:, 0]).mean()

    minimize(loss, weights, steps, 1e-2)
    with torch.inference_mode():
        order, values, queried, right = examples(2000)
        found = scores(order, queried).softmax(1)
        if "hard" in kind:
            return accuracy(values.gather(1, torch.multinomial(found, 1))[:, 0] == right)
        return accuracy(probabilities(found, values).argmax(1) == right)


def _sentence(random: Random, things: int) -> tuple[list[str], list[str], dict[int, int]]:
    """An English sentence, its translation in another word order, and the alignment of nouns, adjectives and verbs; an
    article may attend to its noun, whose gender it has."""
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
    """A seq2seq network trained on such sentences, and its vocabulary."""
    random = Random(0)
    known = [_sentence(random, 3) for _ in range(1000)]
    vocabulary = [BOS, EOS, *sorted({word for *texts, _ in known for text in texts for word in text})]
    encoder, decoder = _random_seq2seq(48, 48, len(vocabulary))

    def loss() -> Tensor:
        things = random.randint(2, 3)
        pairs = [_sentence(random, things) for _ in range(32)]
        batch = _batch(vocabulary, [english for english, _, _ in pairs])
        target = _batch(vocabulary, [[BOS, *spanish] for _, spanish, _ in pairs]).ids
        vectors, _ = decoder(target[:, :-1], decoder.project_source(encoder(batch), batch))
        return F.cross_entropy(decoder.logits(vectors).flatten(0, 1), target[:, 1:].flatten())

    minimize(loss, [*encoder.parameters(), *decoder.parameters()], 250, 1e-2)
    return encoder, decoder, vocabulary


def _random_seq2seq(width: int, attention_dim: int, vocab_size: int) -> tuple[Seq2seqEncoder, Seq2seqDecoder]:
    torch.manual_seed(0)
    system = keel.Seq2seq(width=width, attention_dim=attention_dim, dropout=0.0)
    encoder = system.build_encoder(vocab_size).eval()
    return encoder, system.build_decoder(encoder, vocab_size).eval()


def _batch(vocabulary: list[str], texts: list[list[str]]) -> TokenBatch:
    return TokenBatch.pad([[vocabulary.index(word) for word in [*text, EOS]] for text in texts])


@torch.inference_mode()
def _alignment(
    encoder: Seq2seqEncoder, decoder: Seq2seqDecoder, vocabulary: list[str], english: list[str], spanish: list[str]
) -> tuple[Alignment, AttentionSource, Tensor]:
    """Alignment, encoded source, and decoder state after the first word."""
    batch = _batch(vocabulary, [english])
    source = decoder.project_source(encoder(batch), batch)
    seen: list[Tensor] = []
    ids = _batch(vocabulary, [[BOS, *spanish]]).ids[:, :-1]
    decoder(ids, source, record=lambda name, layer, value: seen.append(value))
    _, state = decoder(ids[:, :1], source)
    return Alignment([*english, EOS], [*spanish, EOS], seen[0][0].numpy()), source, state.hidden[0]
