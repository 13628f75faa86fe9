"""Claims about generated text: decoding, and prompts for answers, summaries, translations and stories."""

import itertools
import json
import math
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import mean_score, parameter_count
from keel.claims.small_models import pretrain_gpt, pretrain_tiny, read_docstrings
from keel.demo.docstrings import Docstring
from keel.explain.zero_shot import next_token_model
from keel.generation.beam_search import beam_search
from keel.generation.likelihood import (
    ScoredText,
    continuation_likelihoods,
    continuation_log_probs,
    encode_continuations,
)
from keel.metrics.squad_scores import AnswerScorer
from keel.systems.rnn import RnnPretraining

ENGLISH = AnswerScorer("english")
SENTENCES = (
    *(("one", animal, "sleeps") for animal in ("cat", "dog", "bird", "horse", "mouse") for _ in range(5)),
    *(("two", "sailors", "sing") for _ in range(15)),
    *(("three", "cooks", "wait") for _ in range(10)),
)
"""A sentence begins with "one" most often, but none of those is as frequent as "two sailors sing"."""


class RecordedInputs:
    """A language model that records its inputs."""

    def __init__(self, model: RnnPretraining):
        self.model, self.bos_id, self.eos_id, self.new_state = model, model.bos_id, model.eos_id, model.new_state
        self.max_context, self.fed = model.max_context, list[list[int]]()

    def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Any]:
        self.fed.append(ids[:, -1].tolist())
        return self.model.step(ids, state)


def next_step_input(say: Say) -> Verdict:
    """57: the input of the next decoding step: token or distribution, of each beam or the most probable one."""
    sentences = [" ".join(words) for words in SENTENCES] * 40
    random.Random(0).shuffle(sentences)
    system = keel.Rnn(width=32, dropout=0.0, bptt=16)
    trained = pretrain_tiny(system, ["\n".join(sentences)], say, sentences="lines", steps=300, batch=16, lr=1e-2)
    model, tokenizer = trained.objective, trained.tokenizer
    assert isinstance(model, RnnPretraining)
    # After some sentences, since the network was trained on a continuous stream without initial states.
    before = [*tokenizer.encode(" ".join(SENTENCES[0])).ids, model.eos_id] * 3
    found = {}
    for beams in (1, 3):
        recorded = RecordedInputs(model)
        ((best,),) = beam_search(recorded, [before], keel.BeamSearch(beams=beams, length_penalty=0.0), max_new_tokens=6)
        found[beams] = best
        say(f"beam {beams}: {tokenizer.decode(best.ids)!r}, p = {math.exp(best.log_prob):.3f}")
        for step, fed in enumerate(recorded.fed[1:3], 2):
            say(f"  input of step {step}: {', '.join(tokenizer.token_of(number) for number in fed)}")
    first, definite, mixed = (tokenizer.token_of(int(logits.argmax())) for logits in _second_words(model, before))
    say(f"most probable first word {first!r}; with it as input, the next word is {definite!r}")
    say(f"with the mean of all first words, weighted by probability, as input, the next word is {mixed!r}")
    bigrams, predicted = {words[:2] for words in SENTENCES}, (first, mixed)
    gain = found[3].log_prob - found[1].log_prob
    return Verdict(
        gain > 0.5 and (first, definite) in bigrams and predicted not in bigrams,
        "the input of each hypothesis is its own last token, and a beam of 3 finds a text that is "
        f"{math.exp(gain):.1f} times as probable as the greedy one; with a distribution as input the "
        f"network mixes its sentences ({' '.join(predicted)!r} is in none of them)",
    )


SUBJECTS = {"i": "我", "you": "你", "he": "他", "she": "她", "we": "我们", "they": "他们"}
VERBS = {"love": "爱", "see": "看见", "leave": "离开", "remember": "记得", "paint": "画", "visit": "参观"}
OBJECTS = {"beijing": "北京", "shanghai": "上海", "london": "伦敦", "paris": "巴黎", "rome": "罗马", "snow": "雪"}


def i_love_beijing(say: Say) -> Verdict:
    """58: a small Transformer trained on 180 sentence pairs translates 36 others."""
    words = [[*enumerate(part.items())] for part in (SUBJECTS, VERBS, OBJECTS)]
    train: list[tuple[str, str]] = []
    test: list[tuple[str, str]] = []
    for parts in itertools.product(*words):
        pair = tuple(" ".join(pair[side] for _, pair in parts) for side in (0, 1))
        # One in six is held out; every two of its words co-occur in training sentences.
        (test if sum(number for number, _ in parts) % 6 == 0 else train).append((pair[0], pair[1]))
    settings: dict[str, Any] = {
        "layers": 1, "decoder_layers": 1, "width": 64, "head_dim": 32, "dropout": 0.0,
        "epochs": 40, "batch": 32, "lr": 3e-3, "device": "cpu", "threads": 1,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model = keel.finetune("transformer", train, task="seq2seq", dev=None, on_event=say.on_event, **settings)
        sources, targets = zip(*test, strict=True)
        written = keel.translate(sources, model=model, trace=f"{folder}/trace.json")
        trace = json.loads(Path(f"{folder}/trace.json").read_text(encoding="utf-8"))["texts"]
    right = sum(one.text == other for one, other in zip(written, targets, strict=True))
    say(f"trained on {len(train)} pairs; {right} of {len(test)} others are translated exactly")
    text = trace[sources.index("i love beijing")]
    for position in text["path"]:
        node = text["hypotheses"][position]
        weights = node["attention"]["cross_attention"][0]
        most = max(range(len(weights)), key=weights.__getitem__)
        attended = f"attends most to {text['source'][most].strip()!r} ({weights[most]:.0%})"
        say(f"  step {node['step']}: {node['token'].strip()} (p = {node['probability']:.2f}), {attended}")
    answer = written[sources.index("i love beijing")].text
    return Verdict(
        answer == "我 爱 北京" and right > 0.9 * len(test),
        f"'i love beijing', which is not in the training data, becomes {answer!r}; {right} of {len(test)} new "
        "sentences are correct",
    )


@torch.no_grad()
def _second_words(model: RnnPretraining, before: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [words] of the first word, of the second after the most probable first one, and of the second after
    the mean of all first words' vectors, weighted by probability."""
    first, state = model.step(torch.tensor([[model.bos_id, *before]]), model.new_state(1))
    second, _ = model.step(first.argmax(1, keepdim=True), state)
    mean = first.softmax(1) @ model.encoder.words.weight  # [1, width]
    layers, _ = model.encoder.forwards(mean[:, None], state=state)
    table = model.encoder.words.weight if model.output is None else model.output
    mixed = torch.addmm(model.bias, layers[-1][:, -1], table.T)
    return first[0], second[0], mixed[0]


NAMES = "Anna Peter Chen Mary Ivan Noor Olga Hugo Rosa Ken Lena Omar".split()  # noqa: SIM905
THINGS = "boat cup lamp book coin ring drum kite clock rope sword violin".split()  # noqa: SIM905
LOCATIONS = "barn cellar tower garden kitchen attic stable chapel mill cave tent library".split()  # noqa: SIM905
PASSAGES = 100
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


def reading_by_size(say: Say, model: keel.Model | None = None) -> Verdict:
    """80: passage, question, "A:", zero-shot, for english-gpt and a smaller or given model."""
    rng = random.Random(0)
    passages, found = [_passage(rng) for _ in range(PASSAGES)], list[tuple[int, keel.Score]]()
    for known in (model or pretrain_gpt(read_docstrings(say), say), keel.Model.load("english-gpt")):
        size, prompts, locations, shares = parameter_count(known.encoder), [], [], []
        for passage, ((question, answer), *_) in passages:
            text = keel.ask(passage, question, model=known, tokens=6).text
            if not shares:
                say(f"{size:,} parameters: {question} ({answer}): {text!r:.60}")
            shares.append(ENGLISH.f1(text, [answer]))
            locations.append([line.split()[-1][:-1] for line in passage.splitlines()])
            prompts += [f"{passage}\nQ: {question}\nA:"] * 3
        choices = [f" {place}" for each in locations for place in each]
        chosen = _log_probs(known, prompts, choices).reshape(-1, 3).argmax(1)
        right = [each[n] == answer for each, n, (_, ((_, answer), *_)) in zip(locations, chosen, passages, strict=True)]
        found.append((size, mean_score(np.array(right, float))))
        say(f"{size:,} parameters: F1 {fmean(shares):.2f}, most probable of three locations right {found[-1][1]:.1%}")
    (smaller, one), (larger, two) = sorted(found, key=lambda each: each[0])
    return Verdict(
        True if (two.low or 0) > (one.high or 1) else False if (one.low or 0) > (two.high or 1) else None,
        f"the right place is the most probable of three in {one.value:.0%} with {smaller / 1e6:.1f} and in "
        f"{two.value:.0%} with {larger / 1e6:.1f} million parameters (chance: 33%)",
    )


def _log_probs(model: keel.Model, prompts: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    return continuation_log_probs(next_token_model(model), encode_continuations(model.tokenizer, prompts, texts))


def _passage(rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
    """Three facts, and three questions with answers in another order."""
    facts = list(zip(rng.sample(NAMES, 3), rng.sample(THINGS, 3), rng.sample(LOCATIONS, 3), strict=True))
    text = "\n".join(f"{name} keeps the {thing} in the {location}." for name, thing, location in facts)
    return text, [(f"Where is the {thing}?", location) for _, thing, location in rng.sample(facts, 3)]


def short_summaries(say: Say) -> Verdict:
    """81: "TL;DR:" after docstrings without their first sentence, which serves as the reference summary."""
    docstrings = read_docstrings(say)
    model = pretrain_gpt(docstrings, say)
    chosen = [each for each in docstrings if each.held_out and _fits(each, model)][:60]
    methods: dict[str, list[float]] = {"TL;DR:": [], "no cue": [], "three random sentences": []}
    for number, docstring in enumerate(chosen):
        reference, *rest = docstring.sentences
        text = "\n".join(rest)
        for name, cue in (("TL;DR:", "TL;DR:"), ("no cue", "")):
            summary = keel.summarize(text, model=model, tokens=40, cue=cue, seed=number).text
            methods[name].append(ENGLISH.f1(summary, [reference]))
            if number == 0:
                say(f"{rest[0]!r:.70} {cue} -> {summary!r:.90}")
        sampled = random.Random(number).sample(rest, min(3, len(rest)))
        methods["three random sentences"].append(ENGLISH.f1(" ".join(sampled), [reference]))
    for name, scores in methods.items():
        say(f"{name}: F1 {fmean(scores):.3f} with the first sentence of {len(scores)} docstrings")
    cue, plain, sampled = (fmean(scores) for scores in methods.values())
    return Verdict(
        cue < sampled,
        f"the generated summaries overlap less with the reference (F1 {cue:.3f}) than random sentences "
        f"({sampled:.3f}); without the cue {plain:.3f}",
    )


def _fits(docstring: Docstring, model: keel.Model) -> bool:
    text = "\n".join(docstring.sentences[1:])
    return len(docstring.sentences) > 3 and len(model.tokenizer.encode(text).ids) < 80


def poor_translation(say: Say) -> Verdict:
    """82: ten lines of "english = french", then an unfinished one."""
    model = keel.Model.load("english-gpt")
    pairs = [(one, other) for one, other in (line.split() for line in FRENCH.split("|"))]
    (shown, queried), correct, copied, seen = (pairs[:10], pairs[10:]), 0, 0, 0
    for english, french in queried:
        translation = keel.translate(english, by_pattern=shown, model=model, tokens=6).text
        correct += bool(ENGLISH.exact_match(translation, [french]))
        copied += bool(ENGLISH.exact_match(translation, [english]))
        seen += translation.strip(".") in [other for _, other in shown]
        if len(say.rows) < 5:
            say(f"{english} = {translation!r} (correct: {french!r})")
    count = len(queried)
    say(f"{correct} of {count} correct; {copied} copy the English word, {seen} copy a French word of the prompt")
    before = "".join(f"{one} = {other}\n" for one, other in shown)
    prompts = [f"{before}{one} =" for one, _ in queried for _ in queried]
    scores = _log_probs(model, prompts, [f" {other}" for _, other in queried] * count).reshape(count, count)
    ranked = mean_score((scores - scores.mean(0)).argmax(1) == np.arange(count))
    say(f"which of {count} French words gains most by the English one? {ranked:.0%} right (chance {1 / count:.0%})")
    return Verdict(
        correct < count / 4,
        f"{correct} of {count} words are correct, and the right one of {count} gains most in {ranked.value:.0%}: a "
        "prompt shows the format, but the words must have been learned in pre-training",
    )


def story_of_unicorns(say: Say) -> Verdict:
    """83: GPT-2's unicorn prompt, continued by a small GPT trained on docstrings."""
    docstrings = read_docstrings(say)
    model = pretrain_gpt(docstrings, say)
    stories = keel.generate([STORY] * 10, model=model, tokens=40, top_k=40)
    shares, topical = [], 0
    for number, story in enumerate(stories):
        words = ENGLISH.tokens(story)
        hits = sum(any(word.startswith(topic) for topic in TOPIC) for word in words)
        shares.append(hits / max(1, len(words)))
        topical += hits > 1
        if number < 2:
            say(" ".join(story.split())[:160])
    own = _bits_per_byte(model, [STORY])
    other = _bits_per_byte(model, [" ".join(each.sentences) for each in docstrings if each.held_out][:200])
    say(f"the prompt has {own:.2f} bits per byte, held-out docstrings {other:.2f}")
    say(f"{topical} of {len(stories)} stories return to their subject twice or more")
    return Verdict(
        topical > len(stories) / 2,
        f"{topical} of {len(stories)} stories of 40 tokens stay with unicorns, scientists or mountains "
        f"({fmean(shares):.1%} of the words): the model writes about what it was trained on, which is function calls",
    )


def _bits_per_byte(model: keel.Model, texts: Sequence[str]) -> float:
    """Bits per byte of the first 100 tokens of each text."""
    scored = [ScoredText([], ids[:100]) for ids in model.tokenizer.encode_many(list(texts))]
    size = sum(len(model.tokenizer.decode(each.text).encode()) for each in scored)
    nats = -sum(each.log_prob for each in continuation_likelihoods(next_token_model(model), scored))
    return nats / size / math.log(2)


def detection(say: Say) -> Verdict:
    """84: detection of generated text by the model's likelihood and by a classifier."""
    docstrings = read_docstrings(say)
    model = pretrain_gpt(docstrings, say)
    tokenizer = model.tokenizer
    chosen = [each for each in docstrings if each.held_out and len(each.sentences) > 2][:300]
    people, prompts = [], []
    for each in chosen:
        prompt, ids = f"{each.sentences[0]}\n", tokenizer.encode("\n".join(each.sentences[1:])).ids
        if len(ids) >= 30 and len(tokenizer.encode(prompt).ids) < 60:
            people.append(tokenizer.decode(ids[:30]))
            prompts.append(prompt)
    generated = keel.generate(prompts, model=model, tokens=30, top_k=40)
    say(f"human: {people[0]!r:.100}")
    say(f"generated: {generated[0].strip()!r:.100}")
    scored = [encode_continuations(tokenizer, prompts, texts) for texts in (people, generated)]
    found = [continuation_likelihoods(next_token_model(model), each) for each in scored]
    human, written = (np.array([each.log_probs.mean() for each in likelihoods]) for likelihoods in found)
    auc = float((written[:, None] > human).mean())
    say(f"likelihood under the model: generated text is more probable in {auc:.0%} of pairs")
    half = len(people) // 2
    kinds, parts = {"people": people, "model": generated}, (slice(half), slice(half, None))
    train, test = ([(text, kind) for kind, texts in kinds.items() for text in texts[part]] for part in parts)
    detector = keel.finetune("fasttext", train, task="classify", dev=None, epochs=20, threads=1)
    right = keel.evaluate(detector, test).values["accuracy"].value
    say(f"fastText classifier trained on {half} of each: accuracy {right:.0%} on {len(test)} texts")
    return Verdict(
        auc > 0.7 or right > 0.7,
        f"text of this small model is detected by its likelihood in {auc:.0%} of pairs and by a classifier in "
        f"{right:.0%} of cases (chance: 50%)",
    )
