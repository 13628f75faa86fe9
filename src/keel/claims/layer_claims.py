"""Claims about the layers of ELMo and their scalar mix."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import (
    accuracy,
    join_values,
    linear_probe,
    mean_score,
    minimize,
    parameter_count,
    shortest_time,
)
from keel.claims.small_models import learn_topics, pretrain_tiny
from keel.data.text_files import open_text
from keel.nn.pooling import ScalarMix
from keel.report.charts import heat_map
from keel.tasks import TASKS

TOPICS = {
    "money": "money loan cash credit coins debt",
    "river": "river water mud reeds flood stream",
    "stage": "actor curtain scene drama role theatre",
}
BOTH = ("watch", "guard", "cook", "guide", "play", "fish")
"""Words that are nouns or verbs, depending on the word before."""
DOUBLE = {"bank": ("money", "river"), "light": ("stage", "river"), "interest": ("money", "stage")}
"""Ambiguous words, each with a sense in two topics."""


@dataclass(frozen=True)
class WordTask:
    """Classification of single words in sentences."""

    texts: list[str] = field(default_factory=list)  # words separated by spaces
    positions: list[int] = field(default_factory=list)
    """Word index in each text."""
    answers: list[int] = field(default_factory=list)

    def add(self, text: str, position: int, answer: int = 0) -> None:
        self.texts.append(text)
        self.positions.append(position)
        self.answers.append(answer)


def scale_of_the_mix(say: Say) -> Verdict:
    """68: the same task with a learned γ and with γ = 1, for vectors of several scales."""
    model, questions = _model_and_tasks()
    features, answers = _features(model, questions["senses"]), torch.tensor(questions["senses"].answers)
    features /= features.std()
    shares: dict[float, tuple[float, float]] = {}
    say("scale of the vectors   accuracy with γ = 1   learned γ   final γ")
    for size in (0.03, 0.1, 0.3, 1.0):
        fixed, _ = _mixed(features * size, answers, free=False)
        free, mix = _mixed(features * size, answers, free=True)
        shares[size] = (fixed, free)
        say(f"{size:20}   {fixed:19.0%}   {free:9.0%}   {mix.gamma.item():7.2f}")
    size, (fixed, free) = max(shares.items(), key=lambda item: item[1][1] - item[1][0])
    return Verdict(
        free > fixed + 0.05 and all(free > fixed - 0.05 for fixed, free in shares.values()),
        f"at a scale of {size:g} a head with small weights reaches {fixed:.0%} in 100 steps with γ = 1 and {free:.0%} "
        f"with a learned γ; at a scale of 1 it is {shares[1.0][0]:.0%} and {shares[1.0][1]:.0%}",
    )


def which_layer(say: Say, model: keel.Model | None = None, data: Path | None = None) -> Verdict:
    """69: parts of speech and senses by each layer and by the mix, of a tiny ELMo or of a given model and data."""
    if model is None:
        model, questions = _model_and_tasks()
        speech, queried = questions["parts of speech"], questions["senses"]
        senses = _features(model, queried), torch.tensor(queried.answers)
    elif data is None:
        what = "a model of real text is evaluated on real text"
        raise keel.UsageError(f"{what}: give --data FOLDER with ud_english_ewt (CoNLL-U files) and wic")
    else:
        speech, senses = _treebank(data / "ud_english_ewt"), _same_sense(model, data / "wic")
    _, by_speech = _layer_preference(say, "parts of speech", _features(model, speech), torch.tensor(speech.answers))
    _, by_sense = _layer_preference(say, "senses", *senses)
    if (count := len(by_speech)) < 3:
        return Verdict(None, f"a model of {count} layers has no second LSTM")
    first = mean_score(100 * (by_speech[1].double() - by_speech[2].double()).numpy())
    second = mean_score(100 * (by_sense[2].double() - by_sense[1].double()).numpy())
    shown = all((lead.low or 0) > 0 for lead in (first, second))
    refuted = any((lead.high or 0) < 0 for lead in (first, second))
    return Verdict(
        shown if shown or refuted else None,
        f"layer 1 is {_ahead(first)} layer 2 in parts of speech, layer 2 is {_ahead(second)} layer 1 in senses",
    )


def _ahead(lead: keel.Score) -> str:
    if lead.value >= 0:
        return f"{lead:.1f} points above"
    low, high = (None if bound is None else -bound for bound in (lead.high, lead.low))
    return f"{keel.Score(value=-lead.value, low=low, high=high):.1f} points below"


def weights_by_task(say: Say) -> Verdict:
    """70: the learned layer weights of each task."""
    model, questions = _model_and_tasks()
    found = {
        name: _layer_preference(say, name, _features(model, queried), torch.tensor(queried.answers))[0]
        for name, queried in questions.items()
    }
    weights = np.array([*found.values()])
    grid = heat_map(["words", "LSTM 1", "LSTM 2"], list(found), weights)
    say.picture(grid, "Weights of a scalar mix of a tiny ELMo's layers for each task; darker is more.")
    most = {name: int(np.argmax(mixed)) for name, mixed in found.items()}
    spread = float(np.ptp(weights, axis=0).max())
    return Verdict(
        spread > 0.1 and most["number"] == 0 and most["senses"] > 0,
        f"the weights of a layer differ between tasks by up to {spread:.2f}: grammatical number uses the character "
        f"layer ({found['number'][0]:.2f}), senses the LSTMs ({sum(found['senses'][1:]):.2f})",
    )


def senses_by_context(say: Say) -> Verdict:
    """72: whether the nearest other occurrence of an ambiguous word has the same sense, by word2vec and by ELMo."""
    texts = _texts(Random(0))
    elmo, questions = _model_and_tasks()
    static = pretrain_tiny(keel.Word2vec(width=32, window=4, subsample=0.0), texts, epochs=3)
    queried = questions["senses"]
    words = np.array([text.split()[position] for text, position in zip(queried.texts, queried.positions, strict=True)])
    answers = np.array(queried.answers)
    right: dict[str, dict[str, float]] = {}
    for name, model in (("word2vec", static), ("ELMo", elmo)):
        vectors = F.normalize(_features(model, queried)[:, -1], dim=1).numpy()
        right[name] = {}
        for word in DOUBLE:
            mine = np.flatnonzero(words == word)
            cosines = vectors[mine] @ vectors[mine].T
            np.fill_diagonal(cosines, -2)
            # Ties count by the share with the same sense.
            nearest = cosines >= cosines.max(1, keepdims=True) - 1e-6
            same = answers[mine][:, None] == answers[mine]
            right[name][word] = float(((nearest & same).sum(1) / nearest.sum(1)).mean())
        shares = ", ".join(f"{word} {share:.0%}" for word, share in right[name].items())
        say(f"{name}: nearest other occurrence has the same sense: {shares}")
    before, after = (float(np.mean([*shares.values()])) for shares in right.values())
    return Verdict(
        before < 0.6 and after > 0.8,
        f"with static vectors the nearest other occurrence has the same sense at chance ({before:.0%}), with ELMo's in "
        f"{after:.0%}",
    )


def speed_for_quality(say: Say) -> Verdict:
    """134: words per second and accuracy of linear probes, for vectors of word2vec and of ELMo."""
    elmo, questions = _model_and_tasks()
    static = pretrain_tiny(keel.Word2vec(width=64, window=4, subsample=0.0), _texts(Random(0)), epochs=3)
    texts = questions["senses"].texts[:200]
    count = sum(len(text.split()) for text in texts)
    sizes = {"word2vec": static, "ELMo": elmo, "word2vec (300)": None, "ELMo (published size)": None}
    torch.manual_seed(0)
    for name, system in (("word2vec (300)", keel.Word2vec(width=300)), ("ELMo (published size)", keel.Elmo())):
        encoder = system.build_encoder(len(elmo.tokenizer)).eval()
        sizes[name] = keel.Model(system=system, encoder=encoder, tokenizer=elmo.tokenizer)
    sizes |= {name: keel.Model.load(name) for name in ("english-words", "english")}
    seconds = {}
    for name, model in sizes.items():
        assert model is not None
        read = texts[:10] if name == "ELMo (published size)" else texts
        words = count * len(read) // len(texts)
        seconds[name] = shortest_time(lambda model=model, read=read: model.encode(read), runs=2) / words
        parameters = parameter_count(model.encoder)
        say(f"{name}: {1 / seconds[name]:,.0f} words per second, {parameters:,} parameters")
    leads = []
    features = {
        name: (_features(static, each)[:, -1], _features(elmo, each).flatten(1)) for name, each in questions.items()
    }
    whole = [torch.from_numpy(model.encode(questions["topics"].texts)) for model in (static, elmo)]
    features["topics of whole texts"] = whole[0], whole[1]
    for name, vectors in features.items():
        answers = torch.tensor(questions[name.partition(" of whole")[0]].answers)
        before, after = (linear_probe(each, answers, ridge=1e-3).double() for each in vectors)
        leads.append(mean_score(100 * (after - before).numpy()))
        say(f"{name}: word2vec {before.mean():.1%}, ELMo {after.mean():.1%}; difference {leads[-1]:.1f} points")
    better = sum((lead.low or 0) > 0 for lead in leads)
    worse = any((lead.high or 0) < 0 for lead in leads)
    factors = [seconds["ELMo"] / seconds["word2vec"], seconds["ELMo (published size)"] / seconds["word2vec (300)"]]
    return Verdict(
        min(factors) > 1 and better > len(leads) / 2 and not worse,
        f"ELMo takes {factors[0]:,.0f} times the time of word2vec, {factors[1]:,.0f} times at published sizes, and is "
        f"better in {better} of {len(leads)} tasks; the encoder english takes "
        f"{seconds['english'] / seconds['english-words']:,.0f} times the time of english-words",
    )


def _texts(random: Random) -> list[str]:
    return ["\n".join(_sentence(topic, random)[0] for _ in range(4)) for _ in range(150) for topic in TOPICS]


def _sentence(topic: str, random: Random) -> tuple[str, list[tuple[str, int, int]]]:
    """A sentence about a topic, and (task, word index, label) of its words."""
    words = random.sample(TOPICS[topic].split(), 3)
    double = random.choice([word for word, topics in DOUBLE.items() if topic in topics])
    both, verb = random.choice(BOTH), random.random() < 0.5
    number, many = list(TOPICS).index(topic), random.random() < 0.5
    thing = random.choice(("boat", "letter", "house", "stone")) + ("s" if many else "")
    start = ["they" if verb else "the", both, "and", thing]
    text = [*start, words[0], "near", "the", double, "of", words[1], "and", words[2], "."]
    queried = [("number", 3, int(many)), ("parts of speech", 1, int(verb)), ("topics", 10, number)]
    return " ".join(text), [*queried, ("senses", 7, DOUBLE[double].index(topic) + 2 * [*DOUBLE].index(double))]


@cache
def _model_and_tasks() -> tuple[keel.Model, dict[str, WordTask]]:
    """A tiny ELMo trained on three topics, and tasks on new sentences."""
    model, random = learn_topics(_texts(Random(0))), Random(1)
    queried: dict[str, WordTask] = {}
    for _ in range(600):
        text, answers = _sentence(random.choice([*TOPICS]), random)
        for name, position, answer in answers:
            queried.setdefault(name, WordTask()).add(text, position, answer)
    return model, queried


def _features(model: keel.Model, question: WordTask) -> Tensor:
    """Vectors [words, layers, width] of the words to classify."""
    layers = []
    for layer in model.encoder.layer_numbers:
        found = model.encode(question.texts, layer=layer, pool="none")
        picked = []
        for text, position, each in zip(question.texts, question.positions, found, strict=True):
            start = len(" ".join(text.split()[:position])) + (position > 0)
            picked.append(
                next(vector for vector, (_, end) in zip(each.vectors, each.offsets, strict=True) if end > start)
            )
        layers.append(np.stack(picked))
    return torch.from_numpy(np.stack(layers, 1)).float()


def _layer_preference(say: Say, name: str, features: Tensor, answers: Tensor) -> tuple[list[float], Tensor]:
    """Weights of the layers in a learned mix, and correctness [layers, test examples] of a linear probe on each layer;
    all are trained on every second example."""
    features = features / features.std((0, 2), keepdim=True)  # a weight should not compensate the scale of its layer
    right = torch.stack([linear_probe(vectors, answers, ridge=1e-3) for vectors in features.unbind(1)])
    together, mix = _mixed(features, answers, free=True, steps=1000)
    alone = join_values(right.double().mean(1).tolist(), ".1%")
    probes = f"accuracy of each layer {alone}, of the mix {together:.1%}"
    say(f"{name}: weights {join_values(mix.weights.tolist())}, γ {mix.gamma.item():.2f}; {probes}")
    return mix.weights.tolist(), right


def _mixed(features: Tensor, answers: Tensor, *, free: bool, steps: int = 100) -> tuple[float, ScalarMix]:
    """Accuracy of a linear probe on a learned mix, and the mix."""
    torch.manual_seed(0)
    mix, classes = ScalarMix(features.shape[1]), int(answers.max()) + 1
    weight, bias = torch.randn(features.shape[2], classes) * 0.1, torch.zeros(classes)

    def loss() -> Tensor:
        return F.cross_entropy(mix(features[::2]) @ weight + bias, answers[::2]) + 1e-3 * weight.square().sum()

    minimize(loss, [mix.scores, *([mix.gamma] if free else []), weight, bias], steps, 0.03)
    with torch.inference_mode():
        return accuracy((mix(features[1::2]) @ weight + bias).argmax(1) == answers[1::2]), mix


def _treebank(folder: Path) -> WordTask:
    """Words of a treebank, one per sentence, with their part of speech."""
    random, names, found = Random(0), dict[str, int](), WordTask()
    for example in TASKS["tag"].read_examples(_file(folder, "*train*.conllu*"))[:6000]:
        assert isinstance(example.label, tuple)
        position = random.randrange(len(example.words))
        answer = names.setdefault(example.label[position], len(names))
        found.add(" ".join(word.replace(" ", "") for word in example.words), position, answer)
    return found


def _same_sense(model: keel.Model, folder: Path) -> tuple[Tensor, Tensor]:
    """Word in Context (Pilehvar and Camacho-Collados 2019): products of a word's vectors in two sentences, and whether
    its sense is the same."""
    sides = WordTask(), WordTask()
    for _, line in open_text(_file(folder / "train", "train.data.txt*")):
        _, _, positions, *texts = line.split("\t")
        for side, position, text in zip(sides, positions.split("-"), texts, strict=True):
            side.add(text, int(position))
    one, other = (F.normalize(_features(model, side), dim=-1) for side in sides)
    answers = [int(line == "T") for _, line in open_text(_file(folder / "train", "train.gold.txt*"))]
    return one * other, torch.tensor(answers)


def _file(folder: Path, pattern: str) -> Path:
    if files := sorted(folder.glob(pattern)):
        return files[0]
    remedy = "use --data with a folder that contains ud_english_ewt and wic"
    raise keel.UsageError(f"{folder} has no file {pattern}: {remedy}")
