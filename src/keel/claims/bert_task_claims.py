"""Claims about how BERT is used."""

import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random

import keel
from keel.claims.attention_claims import CAPITALS
from keel.claims.claim import Finding, Say
from keel.claims.small_models import learn_docstrings, learn_sentences, read_docstrings
from keel.demo.docstrings import balanced, questions

TOPICS = ("boat anchor sail harbour wave captain", "bread oven soup recipe cake cook",
          "judge case verdict court law witness", "rose orchard field hive tree farmer")  # fmt: skip


def symmetric_pairs(say: Say) -> Finding:
    """95: a question that is the same both ways round, learned as (a, b) and asked as (b, a)."""
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
        scores.append((_equal(there, wanted), _equal(back, wanted)))
        agreements.append(_equal(there, back))
        say(f"{name}: right on (a, b) {scores[-1][0]:.1%}, on (b, a) {scores[-1][1]:.1%}")
        say(f"{name}: the same answer both ways in {agreements[-1]:.1%}")
    gap = abs(scores[0][0] - scores[0][1])
    figures = f"with segments the score moves by {100 * gap:.1f} points when the texts change places, and "
    figures += f"{agreements[0]:.0%} of the answers stay ({agreements[1]:.0%} without segments)"
    if min(map(min, scores)) < 0.6:  # whoever has not learned the question agrees with himself about nothing
        return Finding(None, f"the question was not learned; {figures}")
    return Finding(gap < 0.03, figures)


def frozen_or_tuned(say: Say) -> Finding:
    """109: the same labels for the head alone on a frozen encoder, and for all of the network."""
    docstrings = read_docstrings(say)
    learned = balanced(questions(docstring for docstring in docstrings if not docstring.held_out), 60)
    test = balanced(questions(docstring for docstring in docstrings if docstring.held_out), 60)
    base = learn_docstrings(docstrings, next_sentence=True, say=say)
    say(f"which of ten packages is a sentence from? {len(learned)} labels, {len(test)} new sentences")
    tuned = {"epochs": 20, "lr": 1e-3}
    ways = {
        "frozen, the head alone learns": {"freeze": True, "epochs": 40, "lr": 3e-3},
        "fine-tuned, all of it learns": tuned,
        "the same network from scratch": {"from_scratch": True, **tuned},
    }
    found = []
    for name, settings in ways.items():
        model = keel.finetune(base, learned, dev=None, batch=16, **settings)
        found.append(keel.evaluate(model, test).values["accuracy"])
        say(f"{name}: accuracy {found[-1]}")
    frozen, fine, scratch = found
    return Finding(
        all(score.low is not None and score.low > 0.1 for score in (frozen, fine)),
        f"both ways beat a guess (10%): frozen {frozen.value:.1%}, fine-tuned {fine.value:.1%}; with no pre-training "
        f"it is {scratch.value:.1%}",
    )


def two_lines(say: Say) -> Finding:
    """112: a folder, then a vector for each sentence and one for each word."""
    system = keel.Bert(layers=2, width=64, max_positions=32, sequence_length=10, next_sentence=False)
    sentences = [f"{city} is the capital of {country} ." for city, country in CAPITALS.items()]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        learn_sentences(sentences, system, steps=20).save(folder)
        model = keel.Model.load(folder)
        vectors, words = model.encode(sentences), model.encode(sentences[0], pool="none")
    say("model = keel.Model.load(folder)")
    say('vectors, words = model.encode(sentences), model.encode(sentences[0], pool="none")')
    say(f"vectors: {vectors.shape}, one for each of {len(sentences)} sentences; words: {words.vectors.shape}")
    say(f"of {', '.join(words.tokens)}")
    return Finding(
        vectors.shape == (len(sentences), 64) and words.vectors.shape == (len(words.tokens), 64),
        "the second line gives both, sentences and words in their context",
    )


def _same_topic(count: int, random: Random) -> list[tuple[str, str, str]]:
    """Two texts and whether they have one topic; half of them do."""
    pairs = []
    for number in range(count):
        one, other = random.sample(TOPICS, 2)
        second = one if number % 2 else other
        pairs.append((_about(one, random), _about(second, random), "same" if number % 2 else "different"))
    return pairs


def _about(topic: str, random: Random) -> str:
    return " ".join(random.sample(topic.split(), 4))


def _equal(said: list[str], wanted: list[str]) -> float:
    """The share of places where two lists agree."""
    return sum(mine == other for mine, other in zip(said, wanted, strict=True)) / len(said)


def _without_segments(model: keel.Model) -> keel.Model:
    """The same weights in a BERT that has one kind of segment: every word is A."""
    assert isinstance(model.system, keel.Bert)
    system = replace(model.system, segment_types=1)
    encoder = system.build_encoder(len(model.tokenizer))
    weights = model.encoder.state_dict()
    encoder.load_state_dict(weights | {"segments.weight": weights["segments.weight"][:1]})
    return keel.Model(system=system, encoder=encoder, tokenizer=model.tokenizer)
