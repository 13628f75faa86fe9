"""Claims about what language models do untaught: answer, sum up, translate and tell stories."""

import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

import keel
from keel.claims.claim import Finding, Say
from keel.claims.small_models import learn_to_write, read_docstrings
from keel.demo.docstrings import Docstring
from keel.explain.zero_shot import next_token_model
from keel.generation.likelihood import ScoredText, continuation_likelihoods, encode_continuations
from keel.metrics.squad_scores import exact_match, normal_words, overlap_f1
from keel.systems.gpt import Gpt

NAMES = "Anna Peter Chen Mary Ivan Noor Olga Hugo Rosa Ken Lena Omar".split()  # noqa: SIM905
THINGS = "boat cup lamp book coin ring drum kite clock rope sword violin".split()  # noqa: SIM905
PLACES = "barn cellar tower garden kitchen attic stable chapel mill cave tent library".split()  # noqa: SIM905
SIZES = ((1, 16), (1, 64), (2, 64), (3, 96))
"""Layers and width."""
FRENCH = (
    "water eau|bread pain|house maison|dog chien|cat chat|sun soleil|moon lune|night nuit|day jour|tree arbre|"
    "book livre|door porte|fire feu|hand main|milk lait|king roi|queen reine|sea mer|snow neige|year an|"
    "white blanc|black noir|green vert|red rouge|one un|two deux|three trois|four quatre|mother mère|father père"
)
STORY = (
    "In a shocking finding, scientist discovered a herd of unicorns living in a remote, previously unexplored valley, "
    "in the Andes Mountains. Stranger still, they asked for tea."
)
TOPIC = "unicorn horn herd animal valley andes mountain scientist researcher discover tea".split()  # noqa: SIM905


def reading_by_size(say: Say) -> Finding:
    """80: passage, question, "A:"; four sizes that read the same text, in which such questions come up, as often."""
    draw = random.Random(0)
    known = [_passage(draw) for _ in range(4000)]
    documents = ["\n".join([passage, *(f"Q: {q}\nA: {a}" for q, a in asks)]) for passage, asks in known]
    corpus, unseen, found = keel.Corpus.of(documents, sentences="none"), [_passage(draw) for _ in range(150)], []
    for layers, width in SIZES:
        system = Gpt(
            layers=layers,
            width=width,
            head_dim=16,
            max_positions=96,
            sequence_length=64,
            dropout=0,
            attention_dropout=0,
        )
        with tempfile.TemporaryDirectory() as folder:
            model = keel.pretrain(
                system, corpus, out=Path(folder) / "model", vocabulary=500, held_out=0.0, steps=1200, batch=16, lr=3e-3,
                warmup=0.05, evaluate_every=0, device="cpu", on_event=say.on_event,
            )  # fmt: skip
        said = [keel.ask(passage, asks[0][0], model=model, tokens=6).text for passage, asks in unseen]
        found.append(fmean(overlap_f1(text, [asks[0][1]]) for text, (_, asks) in zip(said, unseen, strict=True)))
        weights = sum(weight.numel() for weight in model.encoder.parameters())
        say(f"{layers} layers, {width} wide ({weights:,} weights): F1 {found[-1]:.2f} on {len(unseen)} new passages")
    return Finding(
        None if max(found) < min(found) + 0.1 else found[-1] == max(found),
        f"F1 goes from {found[0]:.2f} to {found[-1]:.2f} with size; naming any of the three places of a passage gives "
        "about 0.33",
    )


def _passage(draw: random.Random) -> tuple[str, list[tuple[str, str]]]:
    """Three facts, and three questions with their answers, in another order."""
    facts = list(zip(draw.sample(NAMES, 3), draw.sample(THINGS, 3), draw.sample(PLACES, 3), strict=True))
    text = "\n".join(f"{name} keeps the {thing} in the {place}." for name, thing, place in facts)
    return text, [(f"Where is the {thing}?", place) for _, thing, place in draw.sample(facts, 3)]


def short_summaries(say: Say) -> Finding:
    """81: "TL;DR:" after docstrings without their first sentence, which is the summary that people wrote."""
    docstrings = read_docstrings(say)
    model = learn_to_write(docstrings, say)
    told = [each for each in docstrings if each.held_out and _fits(each, model)][:60]
    ways: dict[str, list[float]] = {"TL;DR:": [], "no cue": [], "three sentences at random": []}
    for number, docstring in enumerate(told):
        reference, *rest = docstring.sentences
        text = "\n".join(rest)
        for name, cue in (("TL;DR:", "TL;DR:"), ("no cue", "")):
            summary = keel.summarize(text, model=model, tokens=40, cue=cue, seed=number).text
            ways[name].append(overlap_f1(summary, [reference]))
            if number == 0:
                say(f"{rest[0]!r:.70} {cue} -> {summary!r:.90}")
        drawn = random.Random(number).sample(rest, min(3, len(rest)))
        ways["three sentences at random"].append(overlap_f1(" ".join(drawn), [reference]))
    for name, scores in ways.items():
        say(f"{name}: F1 {fmean(scores):.3f} with the first sentence of {len(scores)} docstrings")
    cue, plain, drawn = (fmean(scores) for scores in ways.values())
    return Finding(
        cue < drawn,
        f"what stands after the cue shares less with the summary that people wrote ({cue:.3f}) than sentences drawn at "
        f"random do ({drawn:.3f}); without the cue it is {plain:.3f}",
    )


def _fits(docstring: Docstring, model: keel.Model) -> bool:
    text = "\n".join(docstring.sentences[1:])
    return len(docstring.sentences) > 3 and len(model.tokenizer.encode(text).ids) < 80


def poor_translation(say: Say) -> Finding:
    """82: ten lines of "english = french", then an eleventh whose French is missing."""
    model = learn_to_write(read_docstrings(say), say)
    pairs = [(one, other) for one, other in (line.split() for line in FRENCH.split("|"))]
    right = copied = seen = 0
    for english, french in pairs[10:]:
        said = keel.translate(english, by_pattern=pairs[:10], model=model, tokens=6).text
        right += bool(exact_match(said, [french]))
        copied += bool(exact_match(said, [english]))
        seen += said in [other for _, other in pairs[:10]]
        if len(say.rows) < 5:
            say(f"{english} = {said!r} (right: {french!r})")
    count = len(pairs) - 10
    say(f"{right} of {count} right; {copied} are the English word again, {seen} a French one of the ten examples")
    return Finding(
        right < count / 4,
        f"{right} of {count} words are right: the pattern shows what is wanted, and cannot teach words that the text "
        "never had",
    )


def story_of_unicorns(say: Say) -> Finding:
    """83: GPT-2's unicorns, told on by a small GPT that has read docstrings."""
    docstrings = read_docstrings(say)
    model = learn_to_write(docstrings, say)
    stories = keel.generate([STORY] * 10, model=model, tokens=40, top_k=40)
    shares, topical = [], 0
    for number, story in enumerate(stories):
        words = normal_words(story)
        hits = sum(any(word.startswith(topic) for topic in TOPIC) for word in words)
        shares.append(hits / max(1, len(words)))
        topical += hits > 1
        if number < 2:
            say(" ".join(story.split())[:160])
    own = _bits_by_byte(model, [STORY])
    other = _bits_by_byte(model, [" ".join(each.sentences) for each in docstrings if each.held_out][:200])
    say(f"the prompt costs {own:.2f} bits a byte, held-out docstrings {other:.2f}")
    say(f"{topical} of {len(stories)} stories come back to their subject twice or more")
    return Finding(
        topical > len(stories) / 2,
        f"{topical} of {len(stories)} stories of 40 tokens are about unicorns, scientists or mountains at all "
        f"({fmean(shares):.1%} of the words): what a model tells of is what it has read, and here that is how to call "
        "functions",
    )


def _bits_by_byte(model: keel.Model, texts: Sequence[str]) -> float:
    """Of the first 100 pieces of each text."""
    questions = [
        ScoredText([], each.text[:100]) for each in encode_continuations(model.tokenizer, [""] * len(texts), texts)
    ]
    size = sum(len(model.tokenizer.decode(each.text).encode()) for each in questions)
    nats = -sum(each.log_prob for each in continuation_likelihoods(next_token_model(model), questions))
    return nats / size / math.log(2)


def telling_apart(say: Say) -> Finding:
    """84: sentences that people wrote and what a model wrote in their place: who can tell them apart?"""
    docstrings = read_docstrings(say)
    model = learn_to_write(docstrings, say)
    tokenizer = model.tokenizer
    chosen = [each for each in docstrings if each.held_out and len(each.sentences) > 2][:300]
    prompts = [f"{each.sentences[0]}\n" for each in chosen]
    people, prompts = zip(
        *(
            (tokenizer.decode(ids[:30]), prompt)
            for each, prompt in zip(chosen, prompts, strict=True)
            if len(ids := tokenizer.encode("\n".join(each.sentences[1:])).ids) >= 30
            and len(tokenizer.encode(prompt).ids) < 60
        ),
        strict=True,
    )
    wrote = keel.generate(list(prompts), model=model, tokens=30, top_k=40)
    say(f"by people: {people[0]!r:.100}")
    say(f"by the model: {wrote[0].strip()!r:.100}")
    scores = [
        np.array(
            [
                each.log_probs.mean()
                for each in continuation_likelihoods(
                    next_token_model(model), encode_continuations(tokenizer, prompts, texts)
                )
            ]
        )
        for texts in (people, wrote)
    ]
    likelier = float((scores[1][:, None] > scores[0][None]).mean())
    say(f"by the model's own likelihood: of one of each, its own text is the likelier {likelier:.0%} of the time")
    half = len(people) // 2
    train = [(text, kind) for kind, texts in (("people", people), ("model", wrote)) for text in texts[:half]]
    test = [(text, kind) for kind, texts in (("people", people), ("model", wrote)) for text in texts[half:]]
    detector = keel.finetune("fasttext", train, task="classify", dev=None, epochs=20, threads=1)
    right = keel.evaluate(detector, test).values["accuracy"].value
    say(f"by a fastText classifier that has seen {half} of each: {right:.0%} of {len(test)} told apart")
    return Finding(
        likelier > 0.7 or right > 0.7,
        f"text of this small model is told from people's by its likelihood in {likelier:.0%} of pairs, and by a "
        f"classifier in {right:.0%} of cases (guessing: 50%)",
    )
