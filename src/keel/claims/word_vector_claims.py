"""Claims about vectors of words."""

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
from keel.claims.network_claims import descend
from keel.claims.small_models import TINY, learn_sentences, learn_words, read_docstrings
from keel.config import cache_folder
from keel.data.token_batch import TokenBatch
from keel.demo.docstrings import balanced, questions
from keel.systems.word2vec import Word2vecTraining

KINDS = {
    "animal": ("dog cat bird horse cow sheep", "eats sleeps breathes drinks grows hides"),
    "vehicle": ("car bus truck train tram van", "brakes honks parks rusts stalls reverses"),
}
# 皇 emperor, 后 empress; 男 man, 女 woman; 父 father, 母 mother; 兄 elder brother, 姐 elder sister: each role with what
# is said of it, and then what is said of either sex.
ROLES = {("皇", "后"): "宫冠玺诏", ("男", "女"): "街店车饭", ("父", "母"): "家养教孩", ("兄", "姐"): "同玩幼弟"}
SEXES = ("须他雄刚", "裙她雌柔")
SENSES = {"river": "water fish boat mud reeds flood", "money": "loan cash clerk credit coins debt"}


def one_hot_meaning(say: Say) -> Finding:
    """1: cosines of one-hot vectors and of learned ones, within a kind and between kinds; and unseen words named."""
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
        right = np.where(np.abs(scores) < 1e-6, 0.5, (scores > 0) == kinds[~known]).mean()  # none is half a guess
        found[name] = (within, between, right)
        say(f"{name}: cosine of dog and cat {cosines[0, 1]:.2f}; in a kind {within:.2f}, between kinds {between:.2f}")
        say(f"{name}: a linear rule from 6 labelled words names {right:.0%} of the 6 others rightly")
    one_hot, learned = found["one-hot"], found["word2vec"]
    return Finding(
        one_hot[:2] == (0, 0) and learned[0] > learned[1] + 0.3,
        f"one-hot vectors are all equally far apart, so a rule for dogs says nothing of cats ({one_hot[2]:.0%}, a "
        f"guess); learned from text, cosines are {learned[0]:.2f} within a kind and {learned[1]:.2f} between, and the "
        f"rule holds for {learned[2]:.0%}",
    )


def first_layer(say: Say) -> Finding:
    """4: the same network with a table of vectors, and with one-hot inputs and a matrix, trained side by side."""
    torch.manual_seed(0)
    pretrained = torch.randn(50, 16)
    table, head = nn.Embedding.from_pretrained(pretrained.clone(), freeze=False), nn.Linear(16, 3)
    matrix, other_head = nn.Linear(50, 16, bias=False), nn.Linear(16, 3)
    with torch.no_grad():
        matrix.weight.copy_(pretrained.T)  # using embeddings: the first layer starts from them
        other_head.load_state_dict(head.state_dict())
    ids, labels = torch.randint(50, (64,)), torch.randint(3, (64,))
    same = _apart(table(ids), matrix(F.one_hot(ids, 50).float()))
    say(f"rows of Q looked up, and one-hot times Q: they differ by {same:.1e}")
    inputs = F.one_hot(ids, 50).float()
    descend(lambda: F.cross_entropy(head(table(ids)), labels), [*table.parameters(), *head.parameters()], 100, 0.5)
    descend(
        lambda: F.cross_entropy(other_head(matrix(inputs)), labels),
        [*matrix.parameters(), *other_head.parameters()],
        100,
        0.5,
    )
    trained = _apart(table.weight, matrix.weight.T)
    moved = _apart(table.weight, pretrained)
    say(f"after 100 steps on the same labels both have moved by {moved:.2f}, and differ by {trained:.1e}")
    return Finding(
        same == 0 and trained < 1e-4 < moved,
        f"looking up is multiplying by one-hot (difference {same:.0f}), and fine-tuning the table is training a first "
        f"layer that starts from it ({trained:.0e} after 100 steps); the lookup only skips the zeros",
    )


def only_the_first_layer(say: Say) -> Finding:
    """6: which weights of a network word vectors fill, and a question that these cannot answer."""
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
    say(f"a network of 2 layers has {total:,} weights: word vectors fill {filled:,}, none of the {above:,} above them")
    labelled = [(text, "yes" if text.startswith("anna") else "no") for text in pairs]
    learned, test = labelled[:56], labelled[56:]
    scores = []
    by_words = keel.finetune(words, learned, dev=None, freeze=True, epochs=60, lr=1e-2)
    with torch.no_grad():
        encoder.get_parameter("words.weight").copy_(words.encoder.get_parameter("words.weight"))
    start = keel.Model(system=network, encoder=encoder, tokenizer=words.tokenizer)
    by_layers = keel.finetune(start, learned, dev=None, epochs=40, batch=8, lr=2e-3)
    for name, model in (("vectors alone", by_words), ("layers over them, learned from the labels", by_layers)):
        scores.append(keel.evaluate(model, test).values["accuracy"].value)
        say(f"is it anna who does it? {name}: {scores[-1]:.0%} right")
    one, other = words.encode(["anna calls peter", "peter calls anna"])
    apart = float(np.abs(one - other).max())
    say(f"the mean vectors of 'anna calls peter' and 'peter calls anna' differ by {apart:.1e}")
    return Finding(
        filled + above <= total and scores[0] < 0.6 < scores[1],
        f"word vectors start {filled / total:.0%} of the weights here and no layer above; what needs such a layer, the "
        f"order of words, they leave at a guess ({scores[0]:.0%}): it must be learned from labels ({scores[1]:.0%})",
    )


def linear_model(say: Say) -> Finding:
    """10: the scores that CBOW gives to words, for a sum of contexts; and what the products are estimates of."""
    sentences = _kinds_of_things()
    system = keel.Word2vec(width=32, window=2, subsample=0.0, architecture="cbow", negatives=5)
    model = learn_words(sentences, system, epochs=30)
    assert isinstance(model.objective, Word2vecTraining)
    vectors, contexts = model.encoder.get_parameter("words.weight").detach(), model.objective.contexts.detach()
    torch.manual_seed(0)
    one, other = vectors[torch.randint(5, len(vectors), (2,))]
    apart = _apart((0.3 * one + 0.7 * other) @ contexts.T, 0.3 * (one @ contexts.T) + 0.7 * (other @ contexts.T))
    say(f"CBOW's scores of all words for 0.3 a + 0.7 b, and 0.3 of a's with 0.7 of b's: they differ by {apart:.1e}")
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
    bent = _apart(top[0], 0.3 * top[1] + 0.7 * top[2])
    say(f"a layer of BERT, asked the same: they differ by {bent:.2f}")
    skipgram = learn_words(sentences, replace(system, architecture="skipgram"), epochs=30)
    assert isinstance(skipgram.objective, Word2vecTraining)
    products = skipgram.encoder.get_parameter("words.weight").detach() @ skipgram.objective.contexts.detach().T
    measured, wanted = _information(sentences, skipgram.tokenizer, products.numpy(), window=2)
    likeness = float(np.corrcoef(measured, wanted)[0, 1])
    say(
        f"skip-gram: u·v of {len(wanted):,} pairs of words against their mutual information: correlation {likeness:.2f}"
    )
    return Finding(
        apart < 1e-4 < bent and likeness > 0.7,
        f"the score of a word is a product, linear in the context's vector ({apart:.0e}; a BERT layer is not: "
        f"{bent:.2f}), and products follow pointwise mutual information (correlation {likeness:.2f})",
    )


def arithmetic(say: Say) -> Finding:
    """11: 皇 - 后 = 男 - 女 in text whose words are told apart by sex and role; and a question to real text."""
    sentences = _people()
    model = learn_words(sentences, keel.Word2vec(width=32, window=4, subsample=0.0), epochs=40, tokenizer="characters")
    space = load_vectors(model)
    right, asked = 0, 0
    for (a, b), (c, d) in itertools.permutations(ROLES, 2):
        found = space.analogy(f"{a} - {b} + {d}", top=1)[0]
        right, asked = right + (found.word == c), asked + 1
    emperor = space.analogy("皇 - 男 + 女", top=2)
    say(f"皇 - 男 + 女: {', '.join(f'{word} {score:.2f}' for word, score in emperor)}")
    say(f"all questions a - b + d of {len(ROLES)} pairs: {right} of {asked} right")
    differences = np.array([space.units([space.row(a)])[0] - space.units([space.row(b)])[0] for a, b in ROLES])
    differences /= np.linalg.norm(differences, axis=1, keepdims=True)
    alike = float((differences @ differences.T)[~np.eye(len(ROLES), dtype=bool)].mean())
    say(f"皇 - 后, 男 - 女, 父 - 母, 兄 - 姐: their mean cosine is {alike:.2f}")
    folder = cache_folder() / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    picture = word_map(model, out=folder / "011.svg", pairs=list(ROLES))
    say.progress(f"the picture: {picture}")
    return Finding(
        right == asked and alike > 0.5,
        f"where text tells sex and role apart, {right} of {asked} analogies are right and the differences are parallel "
        f"(cosine {alike:.2f}); real text does so less cleanly, as keel demo shows",
    )


def variance(say: Say) -> Finding:
    """19: how large the numbers of CBOW's and skip-gram's vectors are, and how fast a layer above learns from each."""
    docstrings = read_docstrings(say)
    corpus = ["\n".join(docstring.sentences) for docstring in docstrings if not docstring.held_out]
    learned = balanced(questions(docstring for docstring in docstrings if not docstring.held_out), 100)
    names = sorted({label for _, label in learned})
    labels = torch.tensor([names.index(label) for _, label in learned])
    spreads, losses = [], []
    for architecture in ("skipgram", "cbow"):
        model = learn_words(corpus, keel.Word2vec(width=50, architecture=architecture), epochs=8, say=say)
        words = model.encode([text for text, _ in learned], pool="none")
        spreads.append(float(np.concatenate([it.vectors for it in words]).var()))
        texts = torch.from_numpy(model.encode([text for text, _ in learned]))
        as_they_are = _loss_after(texts, labels)
        matched = _loss_after(texts / texts.std(), labels)
        losses.append((as_they_are, matched))
        means = float(texts.var())
        say(f"{architecture}: variance {spreads[-1]:.3f} of words as they come, {means:.3f} of the means of texts")
        say(f"{architecture}: loss after 200 steps {as_they_are:.3f} as they are, {matched:.3f} brought to variance 1")
    ratio = max(spreads) / min(spreads)
    return Finding(
        ratio > 1.2 and all(matched < plain for plain, matched in losses),
        f"the variances differ by a factor of {ratio:.1f} ({spreads[0]:.3f} of skip-gram, {spreads[1]:.3f} of CBOW); "
        f"at variance 1 the loss is lower after the same steps ({losses[0][1]:.2f} for {losses[0][0]:.2f}, "
        f"{losses[1][1]:.2f} for {losses[1][0]:.2f}); a larger rate for that layer would do the same",
    )


def one_vector(say: Say) -> Finding:
    """20: the vector of one word in several sentences, by word2vec and by BERT."""
    sentences = _two_senses(200)
    asked = ["the bank by the water", "a loan from the bank", "bank"]
    moved = {}
    for name, model in (
        ("word2vec", learn_words(sentences, keel.Word2vec(width=16, window=4, subsample=0.0), epochs=5)),
        ("BERT", learn_sentences(sentences, TINY, steps=100)),
    ):
        found = model.encode(asked, pool="none")
        vectors = [it.vectors[it.tokens.index("bank")] for it in found]
        moved[name] = max(float(np.abs(one - vectors[0]).max()) for one in vectors[1:])
        say(f"{name}: 'bank' in {len(asked)} texts, its vectors differ by {moved[name]:.2g}")
    return Finding(
        moved["word2vec"] == 0 < moved["BERT"],
        f"word2vec's vector of a word is the same in every text (difference {moved['word2vec']:.0f}), BERT's is not "
        f"({moved['BERT']:.2f})",
    )


def no_senses(say: Say) -> Finding:
    """21: which bank is it? By the word's own vector, and by its vector in the sentence."""
    sentences = _two_senses(400)
    truth = [sense for sense in SENSES for _ in range(200)]
    words = learn_words(sentences, keel.Word2vec(width=16, window=4, subsample=0.0), epochs=20)
    space = load_vectors(words)
    means = {
        sense: np.mean([space.similarity("bank", word) for word in text.split()]) for sense, text in SENSES.items()
    }
    own = np.mean([space.similarity("water", word) for word in SENSES["river"].split()[1:]])
    listed = ", ".join(f"{mean:.2f} with words of {sense}" for sense, mean in means.items())
    say(f"word2vec: the mean cosine of 'bank' is {listed}; of 'water', {own:.2f} with its own kind")
    right = {}
    for name, model in (("word2vec", words), ("BERT", learn_sentences(sentences, TINY, steps=300))):
        found = model.encode(sentences, pool="none")
        vectors = np.array([it.vectors[it.tokens.index("bank")] for it in found])
        right[name] = _told_apart(vectors, np.array([sense == "river" for sense in truth]))
        say(f"{name}: a linear rule on the vector of 'bank' names {right[name]:.0%} of the senses in new sentences")
    return Finding(
        right["word2vec"] <= 0.55 and right["BERT"] > 0.9,
        f"one vector for both senses tells none ({right['word2vec']:.0%}, a guess); a vector in context does "
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
    """Sentences of one person with two words of the role and two of the sex, in any order."""
    random = Random(0)
    sentences = []
    for _ in range(3000):
        pair, about = random.choice(list(ROLES.items()))
        sex = random.randrange(2)
        letters = [pair[sex], *random.sample(about, 2), *random.sample(SEXES[sex], 2)]
        random.shuffle(letters)
        sentences.append("".join(letters))
    return sentences


def _two_senses(count: int) -> list[str]:
    """Half about the one bank, half about the other."""
    random = Random(0)
    frames = ("the {} is near the bank with {}", "at the bank there is {} and {}", "{} and {} belong to the bank")
    return [
        random.choice(frames).format(*random.sample(SENSES[sense].split(), 2))
        for sense in SENSES
        for _ in range(count // 2)
    ]


def _information(
    sentences: list[str], tokenizer: keel.Tokenizer, products: np.ndarray, window: int
) -> tuple[np.ndarray, np.ndarray]:
    """The products of pairs that stand near each other 20 times or more, and these pairs' mutual information."""
    counts = np.zeros(products.shape)
    for sentence in sentences:
        ids = tokenizer.encode(sentence).ids
        for here, there in itertools.permutations(range(len(ids)), 2):
            distance = abs(here - there)
            counts[ids[here], ids[there]] += max(0.0, 1 - (distance - 1) / window)  # the window's reach is drawn
    share = counts / counts.sum()
    seen = counts >= 20
    chance = np.outer(share.sum(1), share.sum(0))
    return products[seen], np.log(share[seen] / chance[seen])


def _loss_after(vectors: torch.Tensor, labels: torch.Tensor) -> float:
    """What a network of one hidden layer, made for inputs of variance 1, has left to learn after some steps."""
    torch.manual_seed(0)
    width, hidden = vectors.shape[1], 64
    first, second = torch.randn(width, hidden) / width**0.5, torch.randn(hidden, 10) / hidden**0.5
    weights = [first.requires_grad_(), second.requires_grad_()]
    return descend(lambda: F.cross_entropy(torch.tanh(vectors @ first) @ second, labels), weights, 200, 0.1)


def _told_apart(vectors: np.ndarray, truth: np.ndarray) -> float:
    """How often a linear rule from every second vector names the truth of the others."""
    inputs = np.hstack([vectors, np.ones((len(vectors), 1))])
    weights = np.linalg.lstsq(inputs[::2], 2.0 * truth[::2] - 1, rcond=None)[0]
    return float(((inputs[1::2] @ weights > 0) == truth[1::2]).mean())


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return (one - other).abs().max().item()
