"""Claims about word vectors."""

import itertools
from dataclasses import replace
from random import Random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import (
    accuracy,
    batch_of,
    linear_probe,
    max_difference,
    minimize,
    parameter_count,
    word_vectors,
)
from keel.claims.small_models import TINY, TINY_SKIPGRAM, learn_sentences, picture_path, pretrain_tiny, read_docstrings
from keel.demo.docstrings import balanced, labelled_sentences, training_texts
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


def one_hot_meaning(say: Say) -> Verdict:
    """1: cosines within and between categories for one-hot and learned vectors, and a linear probe for new words."""
    model = pretrain_tiny(keel.Word2vec(width=16, window=3, subsample=0.0), _kinds_of_things(), epochs=20)
    learned = _unit_vectors(model, [word for things, _ in KINDS.values() for word in things.split()])
    kinds = np.repeat(np.arange(2), 6)
    same = (kinds[:, None] == kinds) & ~np.eye(12, dtype=bool)
    known = np.arange(12) % 6 < 3  # the labels of the first three of each kind are given
    found = []
    for name, vectors in (("one-hot", np.eye(12)), ("word2vec", learned)):
        cosines = vectors @ vectors.T
        within, between = cosines[same].mean(), cosines[kinds[:, None] != kinds].mean()
        weights = np.linalg.lstsq(vectors[known], 2.0 * kinds[known] - 1, rcond=None)[0]
        scores = vectors[~known] @ weights
        right = np.where(np.abs(scores) < 1e-6, 0.5, (scores > 0) == kinds[~known]).mean()  # 0 counts one half
        found.append((within, between, right))
        say(f"{name}: cosine of dog and cat {cosines[0, 1]:.2f}; within a category {within:.2f}, between {between:.2f}")
        say(f"{name}: accuracy of a linear probe, trained on 6 words, on 6 others: {right:.0%}")
    one_hot, (within, between, right) = found
    return Verdict(
        one_hot[:2] == (0, 0) and within > between + 0.3,
        f"all one-hot vectors are orthogonal, so nothing transfers to other words ({one_hot[2]:.0%}, chance); "
        f"word2vec's cosines are {within:.2f} within a category and {between:.2f} between, and the probe reaches "
        f"{right:.0%}",
    )


def first_layer(say: Say) -> Verdict:
    """4: the same network with an embedding table and with one-hot inputs and a matrix, trained alike."""
    torch.manual_seed(0)
    pretrained = torch.randn(50, 16)
    table, head = nn.Embedding.from_pretrained(pretrained.clone(), freeze=False), nn.Linear(16, 3)
    matrix, other_head = nn.Linear(50, 16, bias=False), nn.Linear(16, 3)
    with torch.no_grad():
        matrix.weight.copy_(pretrained.T)  # the first layer is initialised with the embeddings
        other_head.load_state_dict(head.state_dict())
    ids, labels = torch.randint(50, (64,)), torch.randint(3, (64,))
    one_hot = F.one_hot(ids, 50).float()
    same = max_difference(table(ids), matrix(one_hot))
    say(f"embedding lookup against one-hot times Q: difference {same:.1e}")

    def loss() -> Tensor:  # of two networks that share no weights
        return F.cross_entropy(head(table(ids)), labels) + F.cross_entropy(other_head(matrix(one_hot)), labels)

    minimize(loss, [*nn.ModuleList([table, head, matrix, other_head]).parameters()], 100, 0.5, torch.optim.SGD)
    trained, moved = max_difference(table.weight, matrix.weight.T), max_difference(table.weight, pretrained)
    say(f"after 100 training steps both have changed by {moved:.2f}; difference {trained:.1e}")
    return Verdict(
        same == 0 and trained < 1e-4 < moved,
        f"a lookup equals a product with one-hot vectors (difference {same:.0f}), and fine-tuning the table equals "
        f"training the first layer ({trained:.0e} after 100 steps)",
    )


def only_the_first_layer(say: Say) -> Verdict:
    """6: the share of a network's parameters that word vectors initialise, and a question of word order."""
    people = ("peter", "maria", "john", "clara", "david", "helen", "frank", "laura", "simon", "julia", "bruno", "erica")
    verbs = ("calls", "visits", "meets", "thanks")
    pairs = [text for name in people for verb in verbs for text in (f"anna {verb} {name}", f"{name} {verb} anna")]
    Random(0).shuffle(pairs)
    words = pretrain_tiny(keel.Word2vec(width=32, window=2, subsample=0.0), pairs, epochs=5)
    network = replace(TINY, layers=2, head_dim=16, sequence_length=8, attention_dropout=0.1)
    torch.manual_seed(0)
    encoder = network.build_encoder(words.encoder.vocab_size)
    vectors = words.encoder.get_parameter("words.weight")
    total, filled, above = parameter_count(encoder), vectors.numel(), sum(map(parameter_count, encoder.blocks()))
    say(f"a 2-layer network has {total:,} parameters: word vectors initialise {filled:,}, none of the {above:,} above")
    labelled = [(text, "yes" if text.startswith("anna") else "no") for text in pairs]
    learned, test = labelled[:56], labelled[56:]
    scores = []
    by_words = keel.finetune(words, learned, dev=None, freeze=True, epochs=60, lr=1e-2)
    with torch.no_grad():
        encoder.get_parameter("words.weight").copy_(vectors)
    start = keel.Model(system=network, encoder=encoder, tokenizer=words.tokenizer)
    by_layers = keel.finetune(start, learned, dev=None, epochs=40, batch=8, lr=2e-3)
    for name, model in (("word vectors", by_words), ("layers above them, trained on the labels", by_layers)):
        scores.append(keel.evaluate(model, test).main_value)
        say(f"is anna the subject? {name}: accuracy {scores[-1]:.0%}")
    one, other = words.encode(["anna calls peter", "peter calls anna"])
    difference = float(np.abs(one - other).max())
    say(f"the mean vectors of 'anna calls peter' and 'peter calls anna': difference {difference:.1e}")
    return Verdict(
        filled + above <= total and scores[0] < 0.6 < scores[1],
        f"word vectors initialise {filled / total:.0%} of the parameters and no layer above; word order needs such a "
        f"layer: accuracy {scores[0]:.0%} without, {scores[1]:.0%} with layers trained on the labels",
    )


def linear_model(say: Say) -> Verdict:
    """10: linearity of CBOW's scores in the context, and skip-gram's products against mutual information."""
    sentences = _kinds_of_things()
    system = keel.Word2vec(width=32, window=2, subsample=0.0, architecture="cbow", negatives=5)
    vectors, contexts = _both_tables(pretrain_tiny(system, sentences, epochs=30))
    torch.manual_seed(0)
    one, other = vectors[torch.randint(5, len(vectors), (2,))]
    mixed = 0.3 * (one @ contexts.T) + 0.7 * (other @ contexts.T)
    difference = max_difference((0.3 * one + 0.7 * other) @ contexts.T, mixed)
    say(f"CBOW: f(0.3 a + 0.7 b) against 0.3 f(a) + 0.7 f(b): difference {difference:.1e}")
    torch.manual_seed(0)
    bert = replace(TINY, head_dim=16, sequence_length=8).build_encoder(40).eval()
    a, b = torch.randn(2, 1, 3, 32)
    with torch.inference_mode():
        batch = batch_of(torch.tensor([[5, 6, 7]]))
        top = [bert.contextualize(mixed, batch).top for mixed in (0.3 * a + 0.7 * b, a, b)]
    bent = max_difference(top[0], 0.3 * top[1] + 0.7 * top[2])
    say(f"BERT layer: the same difference is {bent:.2f}")
    skipgram = pretrain_tiny(replace(system, architecture="skipgram"), sentences, epochs=30)
    vectors, contexts = _both_tables(skipgram)
    ids = skipgram.tokenizer.encode_many(sentences)
    measured, wanted = _mutual_information(ids, (vectors @ contexts.T).numpy(), window=2)
    likeness = float(np.corrcoef(measured, wanted)[0, 1])
    say(f"skip-gram: correlation of u·v with pointwise mutual information over {len(wanted):,} pairs: {likeness:.2f}")
    return Verdict(
        difference < 1e-4 < bent and likeness > 0.7,
        f"scores are linear in the context vector ({difference:.0e}; a BERT layer is not: {bent:.2f}), and the "
        f"products follow pointwise mutual information (correlation {likeness:.2f})",
    )


def arithmetic(say: Say) -> Verdict:
    """11: 皇 - 后 = 男 - 女 in text whose words depend on role and sex."""
    system = keel.Word2vec(width=32, window=4, subsample=0.0)
    model = pretrain_tiny(system, _people(), epochs=40, tokenizer="characters")
    emperor = keel.analogy("皇 - 男 + 女", model=model, top=2)
    say(f"皇 - 男 + 女: {', '.join(f'{word} {score:.2f}' for word, score in emperor)}")
    queried = [*itertools.permutations(ROLES, 2)]
    right = sum(keel.analogy(f"{a} - {b} + {d}", model=model, top=1)[0].word == c for (a, b), (c, d) in queried)
    say(f"analogies a - b + d over {len(ROLES)} pairs: {right} of {len(queried)} correct")
    men, women = (_unit_vectors(model, [pair[sex] for pair in ROLES]) for sex in (0, 1))
    differences = (men - women) / np.linalg.norm(men - women, axis=1, keepdims=True)
    alike = float((differences @ differences.T)[~np.eye(len(ROLES), dtype=bool)].mean())
    say(f"皇 - 后, 男 - 女, 父 - 母, 兄 - 姐: mean cosine of the differences {alike:.2f}")
    say.progress(f"picture: {keel.word_map(model, out=picture_path('011.svg'), pairs=list(ROLES))}")
    return Verdict(
        right == len(queried) and alike > 0.5,
        f"in text composed of role and sex, {right} of {len(queried)} analogies are correct and the differences are "
        f"parallel (cosine {alike:.2f}); in real text less so, as keel demo shows",
    )


def variance(say: Say) -> Verdict:
    """19: variance of CBOW's and skip-gram's vectors, and the convergence of a layer above them."""
    docstrings = read_docstrings(say)
    texts, names = zip(*balanced(labelled_sentences(docstrings, held_out=False), 100), strict=True)
    labels = torch.from_numpy(np.unique(names, return_inverse=True)[1])
    spreads, losses = [], []
    for architecture in ("skipgram", "cbow"):
        system = keel.Word2vec(width=50, architecture=architecture)
        model = pretrain_tiny(system, training_texts(docstrings), say, epochs=8)
        spreads.append(float(np.concatenate([found.vectors for found in model.encode(texts, pool="none")]).var()))
        means = torch.from_numpy(model.encode(texts))
        losses.append((_loss_after(means, labels), _loss_after(means / means.std(), labels)))
        unscaled, matched = losses[-1]
        say(f"{architecture}: variance {spreads[-1]:.3f} of tokens, {means.var().item():.3f} of sentence means")
        say(f"{architecture}: loss after 200 steps {unscaled:.3f} unscaled, {matched:.3f} scaled to variance 1")
    ratio = max(spreads) / min(spreads)
    return Verdict(
        ratio > 1.2 and all(matched < plain for plain, matched in losses),
        f"the variances differ by a factor of {ratio:.1f} ({spreads[0]:.3f} of skip-gram, {spreads[1]:.3f} of CBOW); "
        f"scaled to variance 1 the loss after the same steps is lower ({losses[0][1]:.2f} instead of "
        f"{losses[0][0]:.2f}, {losses[1][1]:.2f} instead of {losses[1][0]:.2f}); a larger learning rate of that layer "
        "has the same effect",
    )


def one_vector(say: Say) -> Verdict:
    """20: the vector of one word in several sentences, by word2vec and by BERT."""
    sentences = _two_senses(200)
    queried = ["the bank by the water", "a loan from the bank", "bank"]
    models = {
        "word2vec": pretrain_tiny(TINY_SKIPGRAM, sentences, epochs=5),
        "BERT": learn_sentences(sentences, TINY, steps=100),
    }
    moved = []
    for name, model in models.items():
        vectors = word_vectors(model, queried, "bank")
        moved.append(max_difference(vectors[1:], vectors[0]))
        say(f"{name}: largest difference between the vectors of 'bank' in {len(queried)} texts: {moved[-1]:.2g}")
    static, contextual = moved
    return Verdict(
        static == 0 < contextual,
        f"word2vec's vector is the same in every text (difference {static:.0f}), BERT's is not ({contextual:.2f})",
    )


def no_senses(say: Say) -> Verdict:
    """21: a linear probe for the sense of "bank", on static and on contextual vectors."""
    sentences = _two_senses(400)
    words = pretrain_tiny(TINY_SKIPGRAM, sentences, epochs=20)

    def mean_similarity(word: str, others: list[str]) -> float:
        return float(np.mean([keel.similarity(word, other, model=words) for other in others]))

    means = [f"{mean_similarity('bank', text.split()):.2f} with {sense} words" for sense, text in SENSES.items()]
    own = mean_similarity("water", SENSES["river"].split()[1:])
    say(f"word2vec: mean cosine of 'bank' {', '.join(means)}; of 'water' with river words {own:.2f}")
    right = []
    for name, model in (("word2vec", words), ("BERT", learn_sentences(sentences, TINY, steps=300))):
        senses = torch.arange(2).repeat_interleave(200)
        right.append(accuracy(linear_probe(word_vectors(model, sentences, "bank"), senses)))
        say(f"{name}: accuracy of a linear probe for the sense of 'bank' in new sentences: {right[-1]:.0%}")
    static, contextual = right
    return Verdict(
        static <= 0.55 and contextual > 0.9,
        f"one vector for both senses carries none ({static:.0%}, chance); a contextual vector does ({contextual:.0%})",
    )


def _unit_vectors(model: keel.Model, words: list[str]) -> np.ndarray:
    vectors = model.encode(words)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _both_tables(model: keel.Model) -> tuple[Tensor, Tensor]:
    """word2vec's vectors of words and of contexts."""
    assert isinstance(model.objective, Word2vecTraining)
    return model.encoder.get_parameter("words.weight").detach(), model.objective.contexts.detach()


def _kinds_of_things() -> list[str]:
    random = Random(0)
    sentences = []
    for _ in range(1500):
        things, verbs = (words.split() for words in random.choice(list(KINDS.values())))
        sentences.append(f"the {random.choice(things)} {random.choice(verbs)} {random.choice(verbs)}")
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
    words = [sense.split() for sense in SENSES.values() for _ in range(count // 2)]
    return [random.choice(templates).format(*random.sample(each, 2)) for each in words]


def _mutual_information(texts: list[list[int]], products: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Products u·v and pointwise mutual information of pairs that co-occur 20 times or more."""
    counts = np.zeros(products.shape)
    for ids in texts:
        for here, there in itertools.permutations(range(len(ids)), 2):
            distance = abs(here - there)
            counts[ids[here], ids[there]] += max(0.0, 1 - (distance - 1) / window)  # the window size is sampled
    share = counts / counts.sum()
    seen = counts >= 20
    independent = np.outer(share.sum(1), share.sum(0))
    return products[seen], np.log(share[seen] / independent[seen])


def _loss_after(vectors: Tensor, labels: Tensor) -> float:
    """Loss after 200 steps of a network with one hidden layer, initialised for inputs of variance 1."""
    torch.manual_seed(0)
    width, hidden = vectors.shape[1], 64
    first, second = torch.randn(width, hidden) / width**0.5, torch.randn(hidden, 10) / hidden**0.5

    def loss() -> Tensor:
        return F.cross_entropy(torch.tanh(vectors @ first) @ second, labels)

    return minimize(loss, [first, second], 200, 0.1, torch.optim.SGD)
