"""Claims about the layers of ELMo: which a task likes, and what the mix of them needs."""

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Finding, Say
from keel.claims.elmo_claims import TINY_ELMO
from keel.claims.network_claims import learn
from keel.claims.small_models import learn_words, pictures
from keel.data.text_files import open_text
from keel.errors import UsageError
from keel.events import ignore
from keel.metrics.scores import Score, intervals, resamples
from keel.nn.scalar_mix import ScalarMix
from keel.report import Page
from keel.report.heatmap import draw_grid

TOPICS = {
    "money": "money loan cash credit coins debt",
    "river": "river water mud reeds flood stream",
    "stage": "actor curtain scene drama role theatre",
}
BOTH = ("watch", "guard", "cook", "guide", "play", "fish")
"""Nouns and verbs, told apart by the word before."""
DOUBLE = {"bank": ("money", "river"), "light": ("stage", "river"), "interest": ("money", "stage")}
"""Words that have a sense in two of the topics each."""


@dataclass(frozen=True)
class Question:
    """Something asked about single words in their sentences."""

    texts: list[str]  # words with blanks between them
    places: list[int]
    """Of the word that is asked about, in each of the texts."""
    answers: list[int]


@dataclass(frozen=True)
class Liked:
    """What a task has learned about layers: their weights, the scale of their mix, and how well each does alone."""

    weights: list[float]
    gamma: float
    right: Tensor
    """[layers, new examples] whether a linear rule on one layer answers rightly."""
    together: float
    """The share of them that a linear rule on the mix does."""

    @property
    def alone(self) -> list[float]:
        """The share that each layer's rule does."""
        return self.right.double().mean(1).tolist()

    def lead(self, one: int, other: int) -> Score:
        """By how many points one layer is ahead of another, over resamples of the examples that both are asked."""
        points = 100 * (self.right[one].double() - self.right[other].double()).numpy()
        drawn = [weights @ points / len(points) for weights in resamples(len(points), np.random.default_rng(0))]
        return intervals({"lead": np.concatenate(drawn)}, len(points))["lead"]


def scale_of_the_mix(say: Say) -> Finding:
    """68: the same task by the mix of layers with a γ that learns and with γ = 1, for vectors of several sizes."""
    model, questions = _world()
    features, answers = _features(model, questions["senses"]), torch.tensor(questions["senses"].answers)
    features /= features.std()
    shares: dict[float, tuple[float, float]] = {}
    say("size of the vectors   right with γ = 1   γ learns   γ at the end")
    for size in (0.03, 0.1, 0.3, 1.0):
        fixed, _ = _mixed(features * size, answers, free=False)
        free, mix = _mixed(features * size, answers, free=True)
        shares[size] = (fixed, free)
        say(f"{size:19}   {fixed:16.0%}   {free:8.0%}   {mix.gamma.item():12.2f}")
    size, (fixed, free) = max(shares.items(), key=lambda item: item[1][1] - item[1][0])
    return Finding(
        free > fixed + 0.05 and all(free > fixed - 0.05 for fixed, free in shares.values()),
        f"where the layers' numbers are of a size of {size:g}, a head with small weights gets {fixed:.0%} in 100 steps "
        f"with γ = 1 and {free:.0%} with a γ that learns; at a size of 1 it is {shares[1.0][0]:.0%} and "
        f"{shares[1.0][1]:.0%}",
    )


def which_layer(say: Say, model: keel.Model | None = None, data: Path | None = None) -> Finding:
    """69: parts of speech and senses by each layer alone and by a mix; of a model and of real text where given."""
    if model is None:
        model, questions = _world()
        speech, senses = (questions[name] for name in ("parts of speech", "senses"))
        asked = {"senses": (_features(model, senses), torch.tensor(senses.answers))}
    elif data is None:
        what = "a model of real text is asked about real text"
        raise UsageError(f"{what}: give --data FOLDER, with ud_english_ewt (CoNLL-U files) and wic in it")
    else:
        speech = _treebank(data / "ud_english_ewt")
        asked = {"senses": _same_sense(model, data / "wic")}
    asked["parts of speech"] = _features(model, speech), torch.tensor(speech.answers)
    found = {name: _liked(*asked[name]) for name in ("parts of speech", "senses")}
    for name, liked in found.items():
        _tell(say, name, liked)
    by_speech, by_sense = found.values()
    if (count := len(by_speech.right)) < 3:
        return Finding(None, f"a model of {count} layers cannot tell the first LSTM from the second")
    first, second = by_speech.lead(1, 2), by_sense.lead(2, 1)
    shown = all((lead.low or 0) > 0 for lead in (first, second))
    refuted = any((lead.high or 0) < 0 for lead in (first, second))
    return Finding(
        shown if shown or refuted else None,
        f"layer 1 alone is {_ahead(first)} layer 2 in parts of speech, layer 2 alone {_ahead(second)} layer 1 in "
        "senses",
    )


def _ahead(lead: Score) -> str:
    if lead.value >= 0:
        return f"{lead:.1f} points above"
    low, high = (None if bound is None else -bound for bound in (lead.high, lead.low))
    return f"{Score(value=-lead.value, low=low, high=high):.1f} points below"


def weights_by_task(say: Say) -> Finding:
    """70: the learned weights of each layer, task by task, as a picture."""
    model, questions = _world()
    found = {name: _liked(_features(model, asked), torch.tensor(asked.answers)) for name, asked in questions.items()}
    for name, liked in found.items():
        _tell(say, name, liked)
    weights = np.array([liked.weights for liked in found.values()])
    page = Page(
        "Which layers a task likes", "The weights that a mix of ELMo's layers has learned: the darker, the more."
    )
    page.figure(draw_grid(["words", "LSTM 1", "LSTM 2"], list(found), weights), "Tasks on a tiny ELMo's vectors.")
    say.progress(f"the picture: {page.write(pictures() / '070.html')}")
    most = {name: int(np.argmax(liked.weights)) for name, liked in found.items()}
    spread = float(np.ptp(weights, axis=0).max())
    return Finding(
        spread > 0.1 and most["spelling"] == 0 and most["senses"] > 0,
        f"tasks differ by up to {spread:.2f} in the weight of a layer: what is spelled is taken from the words "
        f"({found['spelling'].weights[0]:.2f}), senses from the LSTMs ({sum(found['senses'].weights[1:]):.2f})",
    )


def senses_by_context(say: Say) -> Finding:
    """72: of a word with two senses, is the nearest other use of it one in the same sense? By word2vec and by ELMo."""
    texts = _texts(Random(0))
    elmo, questions = _world()
    static = learn_words(texts, keel.Word2vec(width=32, window=4, subsample=0.0), epochs=3)
    asked = questions["senses"]
    words = np.array([text.split()[place] for text, place in zip(asked.texts, asked.places, strict=True)])
    answers = np.array(asked.answers)
    right: dict[str, dict[str, float]] = {}
    for name, model in (("word2vec", static), ("ELMo", elmo)):
        vectors = F.normalize(_features(model, asked)[:, -1], dim=1).numpy()
        right[name] = {}
        for word in DOUBLE:
            mine = np.flatnonzero(words == word)
            cosines = vectors[mine] @ vectors[mine].T
            np.fill_diagonal(cosines, -2)
            # Equal vectors have no nearest: of all that are as near, the share in the same sense counts.
            nearest = cosines >= cosines.max(1, keepdims=True) - 1e-6
            same = answers[mine][:, None] == answers[mine]
            right[name][word] = float(((nearest & same).sum(1) / nearest.sum(1)).mean())
        shares = ", ".join(f"{word} {share:.0%}" for word, share in right[name].items())
        say(f"{name}: the nearest other use is in the same sense: {shares}")
    before, after = (float(np.mean([*shares.values()])) for shares in right.values())
    return Finding(
        before < 0.6 and after > 0.8,
        f"by one vector for each word the nearest other use is in the same sense as often as by chance ({before:.0%}), "
        f"by ELMo's in {after:.0%}: the vector follows the context",
    )


def _tell(say: Say, name: str, liked: Liked) -> None:
    mixed = ", ".join(f"{weight:.2f}" for weight in liked.weights)
    alone = ", ".join(f"{share:.1%}" for share in liked.alone)
    say(f"{name}: weights {mixed}, γ {liked.gamma:.2f}; right by each layer alone {alone}, by the mix "
        f"{liked.together:.1%}")  # fmt: skip


def _texts(random: Random) -> list[str]:
    return ["\n".join(_sentence(topic, random)[0] for _ in range(4)) for _ in range(150) for topic in TOPICS]


def _sentence(topic: str, random: Random) -> tuple[str, list[tuple[str, int, int]]]:
    """A sentence about a topic, and (task, place, answer) of what can be asked about it."""
    words = random.sample(TOPICS[topic].split(), 3)
    double = random.choice([word for word, topics in DOUBLE.items() if topic in topics])
    both, verb = random.choice(BOTH), random.random() < 0.5
    number, many = list(TOPICS).index(topic), random.random() < 0.5
    thing = random.choice(("boat", "letter", "house", "stone")) + ("s" if many else "")
    start = ["they" if verb else "the", both, "and", thing]
    text = [*start, words[0], "near", "the", double, "of", words[1], "and", words[2], "."]
    asked = [("spelling", 3, int(many)), ("parts of speech", 1, int(verb)), ("topics", 10, number)]
    return " ".join(text), [*asked, ("senses", 7, DOUBLE[double].index(topic) + 2 * [*DOUBLE].index(double))]


@cache
def _world() -> tuple[keel.Model, dict[str, Question]]:
    """A tiny ELMo that has read about three topics, and questions about sentences that it has not read."""
    with tempfile.TemporaryDirectory() as folder:
        model = keel.pretrain(
            TINY_ELMO, keel.Corpus.of(_texts(Random(0))), out=Path(folder) / "m", held_out=0.0, steps=400, batch=16,
            lr=1e-2, warmup=5, min_count=1, evaluate_every=0, device="cpu", threads=1,
        )  # fmt: skip
    random = Random(1)
    asked: dict[str, Question] = {}
    for _ in range(600):
        text, answers = _sentence(random.choice([*TOPICS]), random)
        for name, place, answer in answers:
            question = asked.setdefault(name, Question([], [], []))
            question.texts.append(text)
            question.places.append(place)
            question.answers.append(answer)
    return model, asked


def _features(model: keel.Model, question: Question) -> Tensor:
    """[words, layers, width]: what each layer makes of the words that are asked about."""
    layers = []
    for layer in model.encoder.layer_numbers:
        found = model.encode(question.texts, layer=layer, pool="none")
        picked = []
        for text, place, each in zip(question.texts, question.places, found, strict=True):
            start = len(" ".join(text.split()[:place])) + (place > 0)
            at = [number for number, (_, end) in enumerate(each.offsets) if end > start]
            picked.append(each.vectors[at[0]])
        layers.append(np.stack(picked))
    return torch.from_numpy(np.stack(layers, 1)).float()


def _liked(features: Tensor, answers: Tensor) -> Liked:
    """What linear rules on the layers, one by one and mixed, learn from every second example."""
    features = features / features.std((0, 2), keepdim=True)  # or a weight would tell of its layer's size
    right = torch.stack([_linear(features[:, layer], answers) for layer in range(features.shape[1])])
    together, mix = _mixed(features, answers, free=True, steps=1000)
    return Liked(mix.weights.tolist(), mix.gamma.item(), right, together)


def _mixed(features: Tensor, answers: Tensor, *, free: bool, steps: int = 100) -> tuple[float, ScalarMix]:
    """The share of every other example that a linear rule on a learned mix answers rightly, and the mix."""
    torch.manual_seed(0)
    mix = ScalarMix(features.shape[1])
    weight, bias = torch.randn(features.shape[2], int(answers.max()) + 1) * 0.1, torch.zeros(int(answers.max()) + 1)

    def loss() -> Tensor:
        return F.cross_entropy(mix(features[::2]) @ weight + bias, answers[::2]) + 1e-3 * weight.square().sum()

    learn(loss, [mix.scores, *([mix.gamma] if free else []), weight, bias], steps, 0.03)
    with torch.inference_mode():
        told = (mix(features[1::2]) @ weight + bias).argmax(1)
    return (told == answers[1::2]).float().mean().item(), mix


def _linear(vectors: Tensor, answers: Tensor) -> Tensor:
    """Whether a linear rule, learned from every second example, answers each of the others rightly."""
    inputs = F.pad(vectors, (0, 1), value=1.0)
    known, wanted = inputs[::2], F.one_hot(answers[::2]).float()
    ridge = 1e-3 * len(known) * torch.eye(inputs.shape[1])
    rule = torch.linalg.solve(known.T @ known + ridge, known.T @ wanted)
    return (inputs[1::2] @ rule).argmax(1) == answers[1::2]


def _treebank(folder: Path, most: int = 6000) -> Question:
    """Words of a treebank, one of each sentence, and what part of speech they are."""
    random, names = Random(0), dict[str, int]()
    found, sentence = Question([], [], []), list[tuple[str, str]]()
    for line in _lines(folder, "*train*.conllu*"):
        fields = line.split("\t")
        if fields[0].isdigit():
            sentence.append((fields[1].replace(" ", ""), fields[3]))
        elif not line and sentence and len(found.texts) < most:
            place = random.randrange(len(sentence))
            found.texts.append(" ".join(word for word, _ in sentence))
            found.places.append(place)
            found.answers.append(names.setdefault(sentence[place][1], len(names)))
        if not line:
            sentence.clear()
    return found


def _same_sense(model: keel.Model, folder: Path) -> tuple[Tensor, Tensor]:
    """Word in Context: of each pair of sentences the products of a word's vectors in both, and whether its sense is the
    same (Pilehvar and Camacho-Collados 2019)."""
    sides = Question([], [], []), Question([], [], [])
    for line in _lines(folder / "train", "train.data.txt*"):
        _, _, places, *texts = line.split("\t")
        for side, place, text in zip(sides, places.split("-"), texts, strict=True):
            side.texts.append(text)
            side.places.append(int(place))
    one, other = (F.normalize(_features(model, side), dim=-1) for side in sides)
    return one * other, torch.tensor([line == "T" for line in _lines(folder / "train", "train.gold.txt*")]).long()


def _lines(folder: Path, pattern: str) -> list[str]:
    files = sorted(folder.glob(pattern))
    if not files:
        raise UsageError(f"{folder} has no file {pattern}: name by --data a folder with ud_english_ewt and wic in it")
    return [line for _, line in open_text(files[0], "auto", ignore)]
