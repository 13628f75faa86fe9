"""Claims about prompts: questions without labelled answers, and examples in the prompt."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import keel
from keel.claims.answer_claims import CITIES, NAMES
from keel.claims.claim import Say, Verdict
from keel.claims.measures import mean_score
from keel.claims.small_models import NO_DROPOUT, pretrain_tiny
from keel.data.answer_files import read_answers
from keel.data.examples import Examples
from keel.events import ignore
from keel.explain.zero_shot import next_token_model
from keel.generation.likelihood import continuation_likelihoods, encode_continuations
from keel.metrics.squad_scores import AnswerScorer

SHOTS = (0, 1, 2, 4)
QUESTIONS = 150
SMALL_GPT = keel.Gpt(**NO_DROPOUT, layers=2, width=64, head_dim=32, max_positions=64, sequence_length=32)
RELATIONS = {
    "capital": "france paris, japan tokyo, germany berlin, russia moscow, spain madrid, italy rome, egypt cairo, "
    "greece athens, poland warsaw, austria vienna, peru lima, cuba havana",
    "language": "france french, japan japanese, germany german, russia russian, spain spanish, italy italian, "
    "egypt arabic, greece greek, poland polish, austria austrian, peru quechua, cuba cuban",
    "continent": "france europe, japan asia, germany europe, russia asia, spain europe, italy europe, egypt africa, "
    "greece europe, poland europe, austria europe, peru america, cuba america",
}
"""The same twelve countries in each relation: which one is meant is seen from examples alone."""


def examples_in_prompt(say: Say, model: keel.Model | None = None) -> Verdict:
    """145: lines of "country = answer" under one of three relations, with k examples before the question."""
    relations = {name: dict(pair.split() for pair in listed.split(", ")) for name, listed in RELATIONS.items()}
    random = Random(0)
    if model is None:
        texts = [_lines(random.choice([*relations.values()]), 6, random) for _ in range(3000)]
        model = pretrain_tiny(SMALL_GPT, texts, say, steps=400, batch=32, lr=3e-3, warmup=0.1)
        say("a small GPT that has learned from lists of six pairs, each list of one of three relations")
    scores = []
    for count in SHOTS:
        prompts: list[str] = []
        answers: list[str] = []
        right: list[int] = []
        for _ in range(QUESTIONS):
            name = random.choice([*relations])
            *examples, country_queried = random.sample([*relations[name]], count + 1)
            shown = "".join(f"{country} = {relations[name][country]} ; " for country in examples)
            prompts += [f"{shown}{country_queried} ="] * len(relations)
            answers += [f" {each[country_queried]}" for each in relations.values()]
            right.append([*relations].index(name))
        queried = encode_continuations(model.tokenizer, prompts, answers)
        found = [each.log_prob for each in continuation_likelihoods(next_token_model(model), queried)]
        chosen = np.array(found).reshape(QUESTIONS, -1).argmax(1)
        scores.append(mean_score((chosen == right).astype(float)))
        say(f"k = {count}: {scores[-1]:.1%} of {QUESTIONS} questions")
    first, one, *_, last = scores
    return Verdict(
        True if (last.low or 0) > (first.high or 1) else False if last.value <= first.value else None,
        f"the right one of three answers is the most probable in {first.value:.0%} without an example, {one.value:.0%} "
        f"with one and {last.value:.0%} with {SHOTS[-1]}",
    )


def _lines(pairs: dict[str, str], count: int, random: Random) -> str:
    return " ; ".join(f"{country} = {pairs[country]}" for country in random.sample([*pairs], count))


def labelled_and_zero_shot(say: Say, model: keel.Model | None = None, data: Path | None = None) -> Verdict:
    """141: the same questions for a fine-tuned reader, by number of labels, and for a language model without any."""
    if model is None:
        random = Random(0)
        records = [_record(random) for _ in range(4000)]
        texts = [f"{each['context']} Q: {each['question']} A: {each['answers']['text'][0]}" for each in records]
        model = pretrain_tiny(SMALL_GPT, texts, say, steps=400, batch=32, lr=3e-3, warmup=0.1)
        say("a small GPT that has read texts of two facts, a question and its answer")
        train, test = (read_answers([_record(random) for _ in range(count)]) for count in (320, QUESTIONS))
        sizes, settings, tokens = (20, 80, 320), {"epochs": 10, "batch": 16, "lr": 1e-3}, 1  # the cities are words
    elif data is None:
        raise keel.UsageError("a model of real text answers real questions: give --data FOLDER with squad (dev-v1.1)")
    else:
        files = sorted((data / "squad").glob("dev-v1.1*"))
        if not files:
            raise keel.UsageError(f"{data / 'squad'} has no file dev-v1.1*: use --data with the folder that has squad")
        whole = read_answers(files[0])
        order = Random(0).sample(range(len(whole)), 2 * QUESTIONS + 2000)
        test, train = whole.take(order[:QUESTIONS]), whole.take(order[2 * QUESTIONS :])
        sizes, settings, tokens = (100, 500, 2000), {}, 12
    zero = _zero_shot(model, test, tokens)
    say(f"without labels, the passage and the question as a prompt: F1 {100 * zero:.1f} of {len(test)} questions")
    found = {}
    for size in sizes:
        reader = keel.finetune(model, train.take(range(size)), task="answer", dev=None, progress=False, **settings)
        found[size] = keel.evaluate(reader, test).values["answer_f1"].value
        say(f"the same network fine-tuned on {size} labelled answers: F1 {100 * found[size]:.1f}")
    untrained = _untrained_reader(model, train, test)
    say(f"a reader that has seen one label: F1 {100 * untrained:.1f}")
    needed = [size for size in sizes if found[size] > zero]
    enough = f"from {needed[0]} labels on" if needed else "with none of these numbers of labels"
    return Verdict(
        zero > untrained + 0.1,
        f"without labels the language model has F1 {100 * zero:.1f}, a reader without learned answer vectors "
        f"{100 * untrained:.1f}; fine-tuned, the same network is better {enough}",
    )


def _zero_shot(model: keel.Model, test: Examples, tokens: int) -> float:
    """Mean F1 of what the model writes after the passage and the question."""
    assert test.seconds is not None
    scores, scorer = [], AnswerScorer("english")
    for question, passage, answers in zip(test.texts, test.seconds, test.values, strict=True):
        found = keel.ask(passage, question, model=model, tokens=tokens, cut=True, on_event=ignore)
        scores.append(scorer.f1(found.text, answers.texts))
    return float(np.mean(scores))


def _untrained_reader(model: keel.Model, train: Examples, test: Examples) -> float:
    reader = keel.finetune(model, train.take(range(1)), task="answer", dev=None, progress=False, epochs=1)
    return keel.evaluate(reader, test).values["answer_f1"].value


def _record(random: Random) -> dict[str, Any]:
    """A passage of two facts, and a question about one of them."""
    names, cities = random.sample(NAMES, 2), random.sample(CITIES, 2)
    facts = [f"{name} lives in {city} ." for name, city in zip(names, cities, strict=True)]
    queried = random.randrange(2)
    answers = {"text": [cities[queried]]}
    return {"context": " ".join(facts), "question": f"where is {names[queried]} ?", "answers": answers}
