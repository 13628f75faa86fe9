"""Claims about several kinds of similarity in one space."""

from itertools import combinations
from random import Random

import numpy as np

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import mean_score
from keel.claims.small_models import TINY_SKIPGRAM, pretrain_tiny
from keel.systems.wordclass import WordclassEncoder

KINDS = {
    "gender": "king queen, prince princess, duke duchess, man woman, boy girl, father mother, son daughter, "
    "brother sister, uncle aunt, husband wife, actor actress, emperor empress",
    "capital": "france paris, japan tokyo, germany berlin, russia moscow, spain madrid, italy rome, england london, "
    "china beijing, egypt cairo, greece athens, poland warsaw, austria vienna",
    "past tense": "go went, see saw, take took, give gave, know knew, write wrote, speak spoke, run ran, fall fell, "
    "grow grew, sing sang, begin began",
    "plural": "car cars, dog dogs, tree trees, house houses, river rivers, book books, ship ships, king kings, "
    "child children, man men, city cities, war wars",
}
"""Word pairs: words are alike by their pair, or by their column (masculine and feminine, country and capital, ...)."""
LEGS = {
    "animals with four legs": "cat dog horse cow sheep lion wolf goat",
    "other animals": "fish snake bird whale duck eagle shark worm",
    "things on four wheels": "car truck bus taxi van jeep",
}
ANIMALS = {"cat": "four", "dog": "four", "horse": "four", "bird": "none", "fish": "none", "snake": "none"}
VEHICLES = {"car": "four", "truck": "four", "bus": "four", "boat": "none", "ship": "none", "ferry": "none"}
CONTEXTS = {
    "animal": "eats sleeps bites",
    "vehicle": "stops starts rusts",
    "four": "stands turns leans",
    "none": "floats dives drifts",
}
"""Words after a word of each kind: what animals or vehicles do, and what those with four legs or wheels do."""


def several_similarities(say: Say) -> Verdict:
    """144: words that are alike in two ways, in a space of vectors, in hard classes and in a tree of classes."""
    model = keel.Model.load("english-words")
    say("x is like a in one way, like b in another, a and b in neither: x nearer to both than they are to each other")
    shares, rotated = [], []
    for name, listed in KINDS.items():
        pairs = [pair.split() for pair in listed.split(", ")]
        space = {word: model.encode(word) for pair in pairs for word in pair}
        hits = _triples(pairs, space)
        others = [*space]
        Random(0).shuffle(others)
        rotated.append(_triples(pairs, {word: space[other] for word, other in zip(space, others, strict=True)}))
        shares.append(mean_score(hits))
        say(
            f"english-words, {name}: {shares[-1]:.0%} of {len(hits)} triples; words exchanged at random "
            f"{rotated[-1].mean():.0%}"
        )
    classes = _class_triples(say)
    _four_legs(say, model)
    ahead = sum((share.low or 0) > chance.mean() + 0.1 for share, chance in zip(shares, rotated, strict=True))
    return Verdict(
        ahead == len(shares) and classes == 0,
        f"one space has both similarities of {min(share.value for share in shares):.0%} to "
        f"{max(share.value for share in shares):.0%} of the triples (at random "
        f"{np.mean([each.mean() for each in rotated]):.0%}), classes and their tree of {classes:.0%}",
    )


def _triples(pairs: list[list[str]], space: dict[str, np.ndarray]) -> np.ndarray:
    """For each x, its partner a, and each b of the same column: whether x is nearer to both than a is to b."""
    unit = {word: vector / np.linalg.norm(vector) for word, vector in space.items()}
    found = []
    for pair in pairs:
        for column, other in ((0, 1), (1, 0)):
            x, a = unit[pair[column]], unit[pair[other]]
            for b in (unit[each[column]] for each in pairs if each is not pair):
                found.append(min(x @ a, x @ b) > a @ b)
    return np.array(found, float)


def _class_triples(say: Say) -> float:
    """The share of triples in classes, or in their tree, learned from the text that gives word vectors both ways."""
    random = Random(0)
    words = {
        word: (kind, legs) for kind, each in (("animal", ANIMALS), ("vehicle", VEHICLES)) for word, legs in each.items()
    }
    texts = []
    for _ in range(4000):
        word = random.choice([*words])
        texts.append(f"the {word} {random.choice(CONTEXTS[random.choice(words[word])].split())} here")
    static = pretrain_tiny(TINY_SKIPGRAM, texts, epochs=2)
    clusters = pretrain_tiny(keel.Wordclass(classes=10), texts)
    assert isinstance(clusters.encoder, WordclassEncoder)
    by_id = clusters.encoder.paths
    paths = {word: by_id[clusters.tokenizer.encode(word).ids[0]] for word in words}
    vectors = {word: static.encode(word) for word in words}
    triples = [
        (x, a, b)
        for x in words
        for a in words
        for b in words
        if words[a] == (words[x][0], _other(words[x][1])) and words[b][1] == words[x][1] and words[b][0] != words[x][0]
    ]

    def share(similarity: dict[frozenset[str], float]) -> float:
        pairs = [[similarity[frozenset(pair)] for pair in combinations(each, 2)] for each in triples]
        return float(np.mean([min(to_a, to_b) > between for to_a, to_b, between in pairs]))

    both = {frozenset(pair): pair for pair in combinations(words, 2)}
    cosine = {
        key: float(vectors[one] @ vectors[two] / np.linalg.norm(vectors[one]) / np.linalg.norm(vectors[two]))
        for key, (one, two) in both.items()
    }
    same = {key: float(paths[one] == paths[two]) for key, (one, two) in both.items()}
    prefix = {key: float(_common_prefix(paths[one], paths[two])) for key, (one, two) in both.items()}
    shares = [share(each) for each in (cosine, same, prefix)]
    groups: dict[str, list[str]] = {}
    for word, path in sorted(paths.items(), key=lambda item: item[1]):
        groups.setdefault(path, []).append(word)
    say(f"text about {len(words)} animals and vehicles, half of them on four legs or wheels: {len(triples)} triples")
    say(f"word2vec {shares[0]:.0%}; same class {shares[1]:.0%}; depth in the tree of classes {shares[2]:.0%}")
    say("classes: " + "; ".join(f"{path} {' '.join(each)}" for path, each in groups.items()))
    return max(shares[1:])


def _other(legs: str) -> str:
    return "none" if legs == "four" else "four"


def _common_prefix(one: str, other: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _four_legs(say: Say, model: keel.Model) -> None:
    """The literal example: are animals with four legs nearer to cars than other animals are?"""
    spaces = {}
    for name, listed in LEGS.items():
        found = np.stack([model.encode(word) for word in listed.split()])
        spaces[name] = found / np.linalg.norm(found, axis=1, keepdims=True)
    four, others, cars = spaces.values()
    cat, car, dog = four[0], cars[0], four[1]
    say(f"english-words: cat - dog {cat @ dog:.2f}, cat - car {cat @ car:.2f}, dog - car {dog @ car:.2f}")
    to_cars = [(each @ cars.T).mean(1) for each in (four, others)]
    pooled, size = np.concatenate(to_cars), len(four)
    splits = [list(split) for split in combinations(range(len(pooled)), size)]
    gaps = [pooled[split].mean() - np.delete(pooled, split).mean() for split in splits]
    gap = to_cars[0].mean() - to_cars[1].mean()
    p = np.mean([abs(each) >= abs(gap) - 1e-12 for each in gaps])
    say(
        f"mean similarity to things on four wheels: animals with four legs {to_cars[0].mean():.3f}, other animals "
        f"{to_cars[1].mean():.3f}; permutation test p = {p:.3f}"
    )
