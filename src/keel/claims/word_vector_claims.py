"""Claims about word vectors."""

import itertools
from dataclasses import replace
from random import Random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import keel
from keel.api.model_loading import load_vectors
from keel.api.vectors import word_map
from keel.claims.claim import Finding, Say
from keel.claims.measures import gradient_descent, max_difference
from keel.claims.small_models import TINY, learn_sentences, learn_words, read_docstrings
from keel.config import cache_folder
from keel.data.token_batch import TokenBatch
from keel.demo.docstrings import balanced, labelled_sentences
from keel.systems.word2vec import Word2vecTraining

KINDS = {
    "animal": ("dog cat bird horse cow sheep", "eats sleeps breathes drinks grows hides"),
    "vehicle": ("car bus truck train tram van", "brakes honks parks rusts stalls reverses"),
}
# 皇 emperor, 后 empress; 男 man, 女 woman; 父 father, 母 mother; 兄 elder brother, 姐 elder sister: each role with its
# context words, and then the context words of either sex.
ROLES = {("皇", "后"): "宫冠玺诏", ("男", "女"): "街店车饭", ("父", "母"): "家养教孩", ("兄", "姐"): "同玩幼弟"}
SEXES = ("须他雄刚", "裙她雌柔")
SENSES = {"river": "water fish boat mud reeds flood", "money": "loan cash clerk credit coins debt"}


def one_hot_meaning(say: Say) -> Finding:
    """1: cosines within and between categories for one-hot and learned vectors, and a linear probe for new words."""
    model = learn_words(_kinds_of_things(), keel.Word2vec(width=16, window=3, subsample=0.0), epochs=20)
    space = load_vectors(model)
    words = [word for things, _ in KINDS.values() for word in things.split()]
    kinds = np.repeat(np.arange(2), 6)
    same = (kinds[:, None] == kinds) & ~np.eye(12, dtype=bool)
    known = np.arange(12) % 6 < 3  # the labels of the first three of each kind are given
    found = {}
    for name, vectors in (("one-hot", np.eye(12)), ("word2vec", space.units([space.row(word) for word in words]))):
        cosines = vectors @ vectors.T
        within, between = cosines[same].mean(), cosines[kinds[:, None] != kinds].mean()
        weights = np.linalg.lstsq(vectors[known], 2.0 * kinds[known] - 1, rcond=None)[0]
        scores = vectors[~known] @ weights
        right = np.where(
            np.abs(scores) < 1e-6, 0.5, (scores > 0) == kinds[~known]
        ).mean()  # a score of 0 counts one half
        found[name] = (within, between, right)
        say(f"{name}: cosine of dog and cat {cosines[0, 1]:.2f}; within a category {within:.2f}, between {between:.2f}")
        say(f"{name}: accuracy of a linear probe, trained on 6 words, on 6 others: {right:.0%}")
    one_hot, learned = found["one-hot"], found["word2vec"]
    return Finding(
        one_hot[:2] == (0, 0) and learned[0] > learned[1] + 0.3,
        f"all one-hot vectors are orthogonal, so nothing transfers to other words ({one_hot[2]:.0%}, chance); "
        f"word2vec's cosines are {learned[0]:.2f} within a category and {learned[1]:.2f} between, and the probe "
        f"reaches {learned[2]:.0%}",
    )


def first_layer(say: Say) -> Finding:
    """4: the same network with an embedding table and with one-hot inputs and a matrix, trained alike."""
    torch.manual_seed(0)
    pretrained = torch.randn(50, 16)
    table, head = nn.Embedding.from_pretrained(pretrained.clone(), freeze=False), nn.Linear(16, 3)
    matrix, other_head = nn.Linear(50, 16, bias=False), nn.Linear(16, 3)
    with torch.no_grad():
        matrix.weight.copy_(pretrained.T)  # the first layer is initialised with the embeddings
        other_head.load_state_dict(head.state_dict())
    ids, labels = torch.randint(50, (64,)), torch.randint(3, (64,))
    same = max_difference(table(ids), matrix(F.one_hot(ids, 50).float()))
    say(f"embedding lookup against one-hot times Q: difference {same:.1e}")
    inputs = F.one_hot(ids, 50).float()
    gradient_descent(
        lambda: F.cross_entropy(head(table(ids)), labels), [*table.parameters(), *head.parameters()], 100, 0.5
    )
    gradient_descent(
        lambda: F.cross_entropy(other_head(matrix(inputs)), labels),
        [*matrix.parameters(), *other_head.parameters()],
        100,
        0.5,
    )
    trained = max_difference(table.weight, matrix.weight.T)
    moved = max_difference(table.weight, pretrained)
    say(f"after 100 training steps both have changed by {moved:.2f}; difference {trained:.1e}")
    return Finding(
        same == 0 and trained < 1e-4 < moved,
        f"a lookup equals a product with one-hot vectors (difference {same:.0f}), and fine-tuning the table equals "
        f"training the first layer ({trained:.0e} after 100 steps)",
    )


def only_the_first_layer(say: Say) -> Finding:
    """6: the share of a network's parameters that word vectors initialise, and a question of word order."""
    people = ("peter", "maria", "john", "clara", "david", "helen", "frank", "laura", "simon", "julia", "bruno", "erica")
    verbs = ("calls", "visits", "meets", "thanks")
    pairs = [text for name in people for verb in verbs for text in (f"anna {verb} {name}", f"{name} {verb} anna")]
    Random(0).shuffle(pairs)
    words = learn_words(pairs, keel.Word2vec(width=32, window=2, subsample=0.0), epochs=5)
    network = keel.Bert(
        layers=2, width=32, head_dim=16, max_positions=16, sequence_length=8, next_sentence=False, dropout=0.0
    )
    torch.manual_seed(0)
    encoder = network.build_encoder(words.encoder.vocab_size)
    total = sum(weight.numel() for weight in encoder.parameters())
    above = sum(weight.numel() for block in encoder.blocks() for weight in block.parameters())
    filled = words.encoder.get_parameter("words.weight").numel()
    say(f"a 2-layer network has {total:,} parameters: word vectors initialise {filled:,}, none of the {above:,} above")
    labelled = [(text, "yes" if text.startswith("anna") else "no") for text in pairs]
    learned, test = labelled[:56], labelled[56:]
    scores = []
    by_words = keel.finetune(words, learned, dev=None, freeze=True, epochs=60, lr=1e-2)
    with torch.no_grad():
        encoder.get_parameter("words.weight").copy_(words.encoder.get_parameter("words.weight"))
    start = keel.Model(system=network, encoder=encoder, tokenizer=words.tokenizer)
    by_layers = keel.finetune(start, learned, dev=None, epochs=40, batch=8, lr=2e-3)
    for name, model in (("word vectors", by_words), ("layers above them, trained on the labels", by_layers)):
        scores.append(keel.evaluate(model, test).values["accuracy"].value)
        say(f"is anna the subject? {name}: accuracy {scores[-1]:.0%}")
    one, other = words.encode(["anna calls peter", "peter calls anna"])
    difference = float(np.abs(one - other).max())
    say(f"the mean vectors of 'anna calls peter' and 'peter calls anna': difference {difference:.1e}")
    return Finding(
        filled + above <= total and scores[0] < 0.6 < scores[1],
        f"word vectors initialise {filled / total:.0%} of the parameters and no layer above; word order needs such a "
        f"layer: accuracy {scores[0]:.0%} without, {scores[1]:.0%} with layers trained on the labels",
    )


def linear_model(say: Say) -> Finding:
    """10: linearity of CBOW's scores in the context, and skip-gram's products against mutual information."""
    sentences = _kinds_of_things()
    system = keel.Word2vec(width=32, window=2, subsample=0.0, architecture="cbow", negatives=5)
    model = learn_words(sentences, system, epochs=30)
    assert isinstance(model.objective, Word2vecTraining)
    vectors, contexts = model.encoder.get_parameter("words.weight").detach(), model.objective.contexts.detach()
    torch.manual_seed(0)
    one, other = vectors[torch.randint(5, len(vectors), (2,))]
    difference = max_difference(
        (0.3 * one + 0.7 * other) @ contexts.T, 0.3 * (one @ contexts.T) + 0.7 * (other @ contexts.T)
    )
    say(f"CBOW: f(0.3 a + 0.7 b) against 0.3 f(a) + 0.7 f(b): difference {difference:.1e}")
    torch.manual_seed(0)
    bert = (
        keel.Bert(layers=1, width=32, head_dim=16, max_positions=16, sequence_length=8, next_sentence=False)
        .build_encoder(40)
        .eval()
    )
    rows = TokenBatch(ids=torch.tensor([[5, 6, 7]]), lengths=torch.tensor([3]))
    a, b = torch.randn(2, 1, 3, 32)
    with torch.inference_mode():
        top = [bert.contextualize(mixed, rows).top for mixed in (0.3 * a + 0.7 * b, a, b)]
    bent = max_difference(top[0], 0.3 * top[1] + 0.7 * top[2])
    say(f"BERT layer: the same difference is {bent:.2f}")
    skipgram = learn_words(sentences, replace(system, architecture="skipgram"), epochs=30)
    assert isinstance(skipgram.objective, Word2vecTraining)
    products = skipgram.encoder.get_parameter("words.weight").detach() @ skipgram.objective.contexts.detach().T
    measured, wanted = _information(sentences, skipgram.tokenizer, products.numpy(), window=2)
    likeness = float(np.corrcoef(measured, wanted)[0, 1])
    say(f"skip-gram: correlation of u·v with pointwise mutual information over {len(wanted):,} pairs: {likeness:.2f}")
    return Finding(
        difference < 1e-4 < bent and likeness > 0.7,
        f"scores are linear in the context vector ({difference:.0e}; a BERT layer is not: {bent:.2f}), and the "
        f"products follow pointwise mutual information (correlation {likeness:.2f})",
    )


def arithmetic(say: Say) -> Finding:
    """11: 皇 - 后 = 男 - 女 in text whose words depend on role and sex."""
    sentences = _people()
    model = learn_words(sentences, keel.Word2vec(width=32, window=4, subsample=0.0), epochs=40, tokenizer="characters")
    space = load_vectors(model)
    right, queried = 0, 0
    for (a, b), (c, d) in itertools.permutations(ROLES, 2):
        found = space.analogy(f"{a} - {b} + {d}", top=1)[0]
        right, queried = right + (found.word == c), queried + 1
    emperor = space.analogy("皇 - 男 + 女", top=2)
    say(f"皇 - 男 + 女: {', '.join(f'{word} {score:.2f}' for word, score in emperor)}")
    say(f"analogies a - b + d over {len(ROLES)} pairs: {right} of {queried} correct")
    differences = np.array([space.units([space.row(a)])[0] - space.units([space.row(b)])[0] for a, b in ROLES])
    differences /= np.linalg.norm(differences, axis=1, keepdims=True)
    alike = float((differences @ differences.T)[~np.eye(len(ROLES), dtype=bool)].mean())
    say(f"皇 - 后, 男 - 女, 父 - 母, 兄 - 姐: mean cosine of the differences {alike:.2f}")
    folder = cache_folder() / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    picture = word_map(model, out=folder / "011.svg", pairs=list(ROLES))
    say.progress(f"picture: {picture}")
    return Finding(
        right == queried and alike > 0.5,
        f"in text composed of role and sex, {right} of {queried} analogies are correct and the differences are "
        f"parallel (cosine {alike:.2f}); in real text less so, as keel demo shows",
    )


def variance(say: Say) -> Finding:
    """19: variance of CBOW's and skip-gram's vectors, and the convergence of a layer above them."""
    docstrings = read_docstrings(say)
    corpus = ["\n".join(docstring.sentences) for docstring in docstrings if not docstring.held_out]
    learned = balanced(labelled_sentences(docstring for docstring in docstrings if not docstring.held_out), 100)
    names = sorted({label for _, label in learned})
    labels = torch.tensor([names.index(label) for _, label in learned])
    spreads, losses = [], []
    for architecture in ("skipgram", "cbow"):
        model = learn_words(corpus, keel.Word2vec(width=50, architecture=architecture), epochs=8, say=say)
        words = model.encode([text for text, _ in learned], pool="none")
        spreads.append(float(np.concatenate([it.vectors for it in words]).var()))
        texts = torch.from_numpy(model.encode([text for text, _ in learned]))
        unscaled = _loss_after(texts, labels)
        matched = _loss_after(texts / texts.std(), labels)
        losses.append((unscaled, matched))
        means = float(texts.var())
        say(f"{architecture}: variance {spreads[-1]:.3f} of tokens, {means:.3f} of sentence means")
        say(f"{architecture}: loss after 200 steps {unscaled:.3f} unscaled, {matched:.3f} scaled to variance 1")
    ratio = max(spreads) / min(spreads)
    return Finding(
        ratio > 1.2 and all(matched < plain for plain, matched in losses),
        f"the variances differ by a factor of {ratio:.1f} ({spreads[0]:.3f} of skip-gram, {spreads[1]:.3f} of CBOW); "
        f"scaled to variance 1 the loss after the same steps is lower ({losses[0][1]:.2f} instead of "
        f"{losses[0][0]:.2f}, {losses[1][1]:.2f} instead of {losses[1][0]:.2f}); a larger learning rate of that layer "
        "has the same effect",
    )


def one_vector(say: Say) -> Finding:
    """20: the vector of one word in several sentences, by word2vec and by BERT."""
    sentences = _two_senses(200)
    queried = ["the bank by the water", "a loan from the bank", "bank"]
    moved = {}
    for name, model in (
        ("word2vec", learn_words(sentences, keel.Word2vec(width=16, window=4, subsample=0.0), epochs=5)),
        ("BERT", learn_sentences(sentences, TINY, steps=100)),
    ):
        found = model.encode(queried, pool="none")
        vectors = [it.vectors[it.tokens.index("bank")] for it in found]
        moved[name] = max(float(np.abs(one - vectors[0]).max()) for one in vectors[1:])
        say(f"{name}: largest difference between the vectors of 'bank' in {len(queried)} texts: {moved[name]:.2g}")
    return Finding(
        moved["word2vec"] == 0 < moved["BERT"],
        f"word2vec's vector is the same in every text (difference {moved['word2vec']:.0f}), BERT's is not "
        f"({moved['BERT']:.2f})",
    )


def no_senses(say: Say) -> Finding:
    """21: a linear probe for the sense of "bank", on static and on contextual vectors."""
    sentences = _two_senses(400)
    truth = [sense for sense in SENSES for _ in range(200)]
    words = learn_words(sentences, keel.Word2vec(width=16, window=4, subsample=0.0), epochs=20)
    space = load_vectors(words)
    means = {
        sense: np.mean([space.similarity("bank", word) for word in text.split()]) for sense, text in SENSES.items()
    }
    own = np.mean([space.similarity("water", word) for word in SENSES["river"].split()[1:]])
    listed = ", ".join(f"{mean:.2f} with {sense} words" for sense, mean in means.items())
    say(f"word2vec: mean cosine of 'bank' {listed}; of 'water' with river words {own:.2f}")
    right = {}
    for name, model in (("word2vec", words), ("BERT", learn_sentences(sentences, TINY, steps=300))):
        found = model.encode(sentences, pool="none")
        vectors = np.array([it.vectors[it.tokens.index("bank")] for it in found])
        right[name] = _probe_accuracy(vectors, np.array([sense == "river" for sense in truth]))
        say(f"{name}: accuracy of a linear probe for the sense of 'bank' in new sentences: {right[name]:.0%}")
    return Finding(
        right["word2vec"] <= 0.55 and right["BERT"] > 0.9,
        f"one vector for both senses carries none ({right['word2vec']:.0%}, chance); a contextual vector does "
        f"({right['BERT']:.0%})",
    )


def _kinds_of_things() -> list[str]:
    random = Random(0)
    sentences = []
    for _ in range(1500):
        things, verbs = random.choice(list(KINDS.values()))
        sentences.append(
            f"the {random.choice(things.split())} {random.choice(verbs.split())} {random.choice(verbs.split())}"
        )
    return sentences


def _people() -> list[str]:
    """Sentences of one person, two words of the role and two of the sex, in random order."""
    random = Random(0)
    sentences = []
    for _ in range(3000):
        pair, about = random.choice(list(ROLES.items()))
        sex = random.randrange(2)
        characters = [pair[sex], *random.sample(about, 2), *random.sample(SEXES[sex], 2)]
        random.shuffle(characters)
        sentences.append("".join(characters))
    return sentences


def _two_senses(count: int) -> list[str]:
    """Half about river banks, half about money."""
    random = Random(0)
    templates = ("the {} is near the bank with {}", "at the bank there is {} and {}", "{} and {} belong to the bank")
    return [
        random.choice(templates).format(*random.sample(SENSES[sense].split(), 2))
        for sense in SENSES
        for _ in range(count // 2)
    ]


def _information(
    sentences: list[str], tokenizer: keel.Tokenizer, products: np.ndarray, window: int
) -> tuple[np.ndarray, np.ndarray]:
    """Products u·v and pointwise mutual information of pairs that co-occur 20 times or more."""
    counts = np.zeros(products.shape)
    for sentence in sentences:
        ids = tokenizer.encode(sentence).ids
        for here, there in itertools.permutations(range(len(ids)), 2):
            distance = abs(here - there)
            counts[ids[here], ids[there]] += max(0.0, 1 - (distance - 1) / window)  # the window size is sampled
    share = counts / counts.sum()
    seen = counts >= 20
    independent = np.outer(share.sum(1), share.sum(0))
    return products[seen], np.log(share[seen] / independent[seen])


def _loss_after(vectors: torch.Tensor, labels: torch.Tensor) -> float:
    """Loss after 200 steps of a network with one hidden layer, initialised for inputs of variance 1."""
    torch.manual_seed(0)
    width, hidden = vectors.shape[1], 64
    first, second = torch.randn(width, hidden) / width**0.5, torch.randn(hidden, 10) / hidden**0.5
    weights = [first.requires_grad_(), second.requires_grad_()]
    return gradient_descent(lambda: F.cross_entropy(torch.tanh(vectors @ first) @ second, labels), weights, 200, 0.1)


def _probe_accuracy(vectors: np.ndarray, truth: np.ndarray) -> float:
    """Accuracy of a linear probe trained on every second vector, on the others."""
    inputs = np.hstack([vectors, np.ones((len(vectors), 1))])
    weights = np.linalg.lstsq(inputs[::2], 2.0 * truth[::2] - 1, rcond=None)[0]
    return float(((inputs[1::2] @ weights > 0) == truth[1::2]).mean())
