"""Claims about using BERT."""

import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import keel
from keel.claims.attention_claims import CAPITALS
from keel.claims.claim import Finding, Say
from keel.claims.small_models import learn_docstrings, learn_sentences, read_docstrings
from keel.demo.docstrings import balanced, labelled_sentences

TOPICS = ("boat anchor sail harbour wave captain", "bread oven soup recipe cake cook",
          "judge case verdict court law witness", "rose orchard field hive tree farmer")  # fmt: skip


def symmetric_pairs(say: Say) -> Finding:
    """95: a symmetric task, trained on (a, b) and tested on (a, b) and (b, a)."""
    random = Random(0)
    system = keel.Bert(
        layers=2, width=64, head_dim=32, max_positions=32, sequence_length=16, next_sentence=False, dropout=0.0
    )
    base = learn_sentences([_about(topic, random) for topic in TOPICS * 100], system, steps=300)
    learned, test = _same_topic(2000, random), _same_topic(500, random)
    wanted = [label for _, _, label in test]
    scores, agreements = [], []
    for name, parent in (("with segments", base), ("without segments", _without_segments(base))):
        model = keel.finetune(parent, learned, task="pair", dev=None, epochs=8, batch=32, lr=1e-3)
        there = [found.label for found in model.predict([(one, two) for one, two, _ in test])]
        back = [found.label for found in model.predict([(two, one) for one, two, _ in test])]
        scores.append((_agreement(there, wanted), _agreement(back, wanted)))
        agreements.append(_agreement(there, back))
        say(f"{name}: accuracy on (a, b) {scores[-1][0]:.1%}, on (b, a) {scores[-1][1]:.1%}")
        say(f"{name}: same prediction in both orders: {agreements[-1]:.1%}")
    gap = abs(scores[0][0] - scores[0][1])
    figures = f"with segments, swapping the texts changes the accuracy by {100 * gap:.1f} points, and "
    figures += f"{agreements[0]:.0%} of the predictions agree ({agreements[1]:.0%} without segments)"
    if min(map(min, scores)) < 0.6:  # the task was not learned
        return Finding(None, f"the task was not learned; {figures}")
    return Finding(gap < 0.03, figures)


def frozen_or_tuned(say: Say) -> Finding:
    """109: the same labels with a frozen encoder, with fine-tuning, and from scratch."""
    docstrings = read_docstrings(say)
    learned = balanced(labelled_sentences(docstring for docstring in docstrings if not docstring.held_out), 60)
    test = balanced(labelled_sentences(docstring for docstring in docstrings if docstring.held_out), 60)
    base = learn_docstrings(docstrings, next_sentence=True, say=say)
    say(f"which of ten packages is a sentence from? {len(learned)} labels, {len(test)} test sentences")
    finetuning = {"epochs": 20, "lr": 1e-3}
    methods = {
        "frozen encoder, trained head": {"freeze": True, "epochs": 40, "lr": 3e-3},
        "fine-tuned": finetuning,
        "from scratch": {"from_scratch": True, **finetuning},
    }
    found = []
    for name, settings in methods.items():
        model = keel.finetune(base, learned, dev=None, batch=16, **settings)
        found.append(keel.evaluate(model, test).values["accuracy"])
        say(f"{name}: accuracy {found[-1]}")
    frozen, fine, scratch = found
    return Finding(
        all(score.low is not None and score.low > 0.1 for score in (frozen, fine)),
        f"both are above chance (10%): frozen {frozen.value:.1%}, fine-tuned {fine.value:.1%}; without pre-training "
        f"{scratch.value:.1%}",
    )


def two_lines(say: Say) -> Finding:
    """112: load a model folder, then encode sentences and words."""
    system = keel.Bert(layers=2, width=64, max_positions=32, sequence_length=10, next_sentence=False)
    sentences = [f"{city} is the capital of {country} ." for city, country in CAPITALS.items()]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        learn_sentences(sentences, system, steps=20).save(folder)
        model = keel.Model.load(folder)
        vectors, words = model.encode(sentences), model.encode(sentences[0], pool="none")
    say("model = keel.Model.load(folder)")
    say('vectors, words = model.encode(sentences), model.encode(sentences[0], pool="none")')
    say(f"vectors: {vectors.shape}, one per sentence; words: {words.vectors.shape}, one per token")
    say(f"tokens: {', '.join(words.tokens)}")
    return Finding(
        vectors.shape == (len(sentences), 64) and words.vectors.shape == (len(words.tokens), 64),
        "the second line returns sentence vectors and contextual word vectors",
    )


def _same_topic(count: int, random: Random) -> list[tuple[str, str, str]]:
    """Pairs of texts, half of them about the same topic."""
    pairs = []
    for number in range(count):
        one, other = random.sample(TOPICS, 2)
        second = one if number % 2 else other
        pairs.append((_about(one, random), _about(second, random), "same" if number % 2 else "different"))
    return pairs


def _about(topic: str, random: Random) -> str:
    return " ".join(random.sample(topic.split(), 4))


def _agreement(predicted: list[str], wanted: list[str]) -> float:
    """Share of equal elements."""
    return sum(mine == other for mine, other in zip(predicted, wanted, strict=True)) / len(predicted)


def _without_segments(model: keel.Model) -> keel.Model:
    """The same weights in a BERT with one segment type."""
    assert isinstance(model.system, keel.Bert)
    system = replace(model.system, segment_types=1)
    encoder = system.build_encoder(len(model.tokenizer))
    weights = model.encoder.state_dict()
    encoder.load_state_dict(weights | {"segments.weight": weights["segments.weight"][:1]})
    return keel.Model(system=system, encoder=encoder, tokenizer=model.tokenizer)
