"""Claims about how BERT is used."""

import tempfile
from dataclasses import replace
from pathlib import Path

import keel
from keel.claims.attention import CAPITALS
from keel.claims.finding import Finding, Say
from keel.claims.models import learn_docstrings, learn_sentences, read_docstrings
from keel.demo.docstrings import Docstring, balanced, questions

TOPICS = ("huggingface_hub", "networkx", "sympy", "torch")


def symmetric_pairs(say: Say) -> Finding:
    """95: a question that is the same both ways round, learned as (a, b) and asked as (b, a)."""
    docstrings = read_docstrings(say)
    learned = _same_package([docstring for docstring in docstrings if not docstring.held_out], each=300)
    test = _same_package([docstring for docstring in docstrings if docstring.held_out], each=100)
    base = learn_docstrings(docstrings, next_sentence=True, say=say)
    agreements, gaps = [], []
    for name, parent in (("with segments", base), ("without segments", _without_segments(base))):
        model = keel.finetune(parent, learned, task="pair", dev=None, epochs=4, batch=32, lr=5e-4)
        there, back = ([label.name for label in model.predict(pairs)] for pairs in (
            [(one, two) for one, two, _ in test], [(two, one) for one, two, _ in test]
        ))  # fmt: skip
        right = [sum(map(str.__eq__, said, (label for _, _, label in test))) / len(test) for said in (there, back)]
        agreements.append(sum(map(str.__eq__, there, back)) / len(test))
        gaps.append(abs(right[0] - right[1]))
        say(
            f"{name}: right on (a, b) {right[0]:.1%}, on (b, a) {right[1]:.1%}; the same answer in {agreements[-1]:.1%}"
        )
    return Finding(
        gaps[0] < 0.05,
        f"with segments the score moves by {100 * gaps[0]:.1f} points when the texts change places "
        f"({100 * gaps[1]:.1f} without), and {agreements[0]:.0%} of the answers stay ({agreements[1]:.0%} without): A "
        "and B say which words belong together, not which text matters",
    )


def frozen_or_tuned(say: Say) -> Finding:
    """109: the same labels for the head alone on a frozen encoder, and for all of the network."""
    docstrings = read_docstrings(say)
    learned = balanced(questions(docstring for docstring in docstrings if not docstring.held_out), 60)
    test = balanced(questions(docstring for docstring in docstrings if docstring.held_out), 60)
    base = learn_docstrings(docstrings, next_sentence=True, say=say)
    say(f"which of ten packages is a sentence from? {len(learned)} labels, {len(test)} new sentences")
    found = {}
    for freeze in (True, False):
        settings = {"epochs": 40, "lr": 3e-3} if freeze else {"epochs": 10, "lr": 5e-4}
        model = keel.finetune(base, learned, dev=None, freeze=freeze, batch=32, **settings)
        found[freeze] = keel.evaluate(model, test).values["accuracy"]
        say(
            f"{'frozen, the head alone learns' if freeze else 'fine-tuned, all of it learns'}: accuracy {found[freeze]}"
        )
    return Finding(
        min(score.low for score in found.values()) > 0.1,
        f"both ways beat a guess (10%): frozen {found[True].value:.1%}, fine-tuned {found[False].value:.1%}",
    )


def two_lines(say: Say) -> Finding:
    """112: a folder, then a vector for each sentence and one for each word."""
    system = keel.Bert(layers=2, width=64, positions=32, length=10, next_sentence=False)
    sentences = [f"{city} is the capital of {country} ." for city, country in CAPITALS.items()]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        learn_sentences(sentences, system, steps=20).save(folder)
        model = keel.Model.load(folder)
        vectors, words = model.encode(sentences), model.encode(sentences[0], pool="none")
    say("model = keel.Model.load(folder)")
    say('vectors, words = model.encode(sentences), model.encode(sentences[0], pool="none")')
    say(f"vectors: {vectors.shape}, one for each of {len(sentences)} sentences; words: {words.vectors.shape}")
    say(f"of {', '.join(words.pieces)}")
    return Finding(
        vectors.shape == (len(sentences), 64) and words.vectors.shape == (len(words.pieces), 64),
        "the second line gives both, sentences and words in their context",
    )


def _same_package(docstrings: list[Docstring], each: int) -> list[tuple[str, str, str]]:
    """(sentence, sentence, "same" or "different"), by the package they are from; half of each."""
    found = balanced(((text, package) for text, package in questions(docstrings) if package in TOPICS), 2 * each)
    texts = {topic: [text for text, package in found if package == topic] for topic in TOPICS}
    pairs = []
    for number, topic in enumerate(TOPICS):
        other = texts[TOPICS[(number + 1) % len(TOPICS)]]
        for place in range(0, each, 2):
            pairs.append((texts[topic][place], texts[topic][place + 1], "same"))
            pairs.append((texts[topic][each + place], other[each + place + 1], "different"))
    return pairs


def _without_segments(model: keel.Model) -> keel.Model:
    """The same weights in a BERT that has one kind of segment: every word is A."""
    assert isinstance(model.system, keel.Bert)
    system = replace(model.system, segments=1)
    encoder = system.encoder(len(model.tokenizer))
    weights = model.encoder.state_dict()
    encoder.load_state_dict(weights | {"segments.weight": weights["segments.weight"][:1]})
    return keel.Model(system=system, encoder=encoder, tokenizer=model.tokenizer)
