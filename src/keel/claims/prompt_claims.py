"""Claims about prompts: questions without labelled answers, and examples in the prompt."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import keel
from keel.claims.answer_claims import CITIES, NAMES
from keel.claims.claim import Say, Verdict
from keel.claims.measures import mean_score
from keel.data.answer_files import read_answers
from keel.data.examples import Examples
from keel.events import ignore, pluralize
from keel.explain.zero_shot import next_token_model
from keel.generation.likelihood import continuation_log_probs, encode_continuations
from keel.metrics.squad_scores import AnswerScorer

SHOTS = (0, 1, 2, 4)
QUESTIONS = 150
RELATIONS = {
    "capital": "France Paris, Japan Tokyo, Germany Berlin, Russia Moscow, Spain Madrid, Italy Rome, Egypt Cairo, "
    "Greece Athens, Poland Warsaw, Austria Vienna, Peru Lima, Cuba Havana",
    "language": "France French, Japan Japanese, Germany German, Russia Russian, Spain Spanish, Italy Italian, "
    "Egypt Arabic, Greece Greek, Poland Polish, Austria Austrian, Peru Quechua, Cuba Cuban",
    "continent": "France Europe, Japan Asia, Germany Europe, Russia Asia, Spain Europe, Italy Europe, Egypt Africa, "
    "Greece Europe, Poland Europe, Austria Europe, Peru America, Cuba America",
}
"""The same twelve countries in each relation: which one is meant is seen from examples alone."""


def examples_in_prompt(say: Say, model: keel.Model | None = None) -> Verdict:
    """145: lines of "country = answer" under one of three relations, with k examples before the question."""
    model = model or keel.Model.load("english-gpt")
    relations = {name: dict(pair.split() for pair in listed.split(", ")) for name, listed in RELATIONS.items()}
    random = Random(0)
    scores = []
    for count in SHOTS:
        prompts: list[str] = []
        answers: list[str] = []
        right: list[int] = []
        for _ in range(QUESTIONS):
            name = random.choice([*relations])
            country_queried, *others = random.sample([*relations[name]], count + 1)
            prompts += [_prompt(relations[name], others, country_queried)] * len(relations)
            answers += [f" {each[country_queried]}" for each in relations.values()]
            right.append([*relations].index(name))
        chosen = _log_probs(model, prompts, answers).reshape(QUESTIONS, -1).argmax(1)
        scores.append(mean_score((chosen == right).astype(float)))
        say(f"k = {count}: the right one of three relations {scores[-1]:.1%} of {QUESTIONS} questions")
    _say_answers(say, model, relations["capital"], random)
    first, one, *_, last = scores
    return Verdict(
        True if (last.low or 0) > (first.high or 1) else False if last.value <= first.value else None,
        f"the right one of three answers is the most probable in {first.value:.0%} without an example, {one.value:.0%} "
        f"with one and {last.value:.0%} with {SHOTS[-1]}",
    )


def _say_answers(say: Say, model: keel.Model, pairs: dict[str, str], random: Random) -> None:
    """Which of the capitals that are not in the examples is the most probable, and which gains most by the country."""
    shots = [random.sample([other for other in pairs if other != each], SHOTS[-1]) for each in pairs]
    prompts = [_prompt(pairs, shown, country) for country, shown in zip(pairs, shots, strict=True) for _ in pairs]
    found = _log_probs(model, prompts, [f" {each}" for each in pairs.values()] * len(pairs)).reshape(len(pairs), -1)
    found[[[country in shown for country in pairs] for shown in shots]] = np.nan
    right = [
        int((np.nanargmax(each, 1) == np.arange(len(pairs))).sum()) for each in (found, found - np.nanmean(found, 0))
    ]
    say(
        f"k = {SHOTS[-1]}: of {len(pairs) - SHOTS[-1]} capitals that are not in the examples, the right one is most "
        f"probable for {right[0]} of {len(pairs)} countries, and gains most by the country for {right[1]}"
    )


def _prompt(pairs: dict[str, str], shown: list[str], queried: str) -> str:
    return "".join(f"{country} = {pairs[country]} ; " for country in shown) + f"{queried} ="


def _log_probs(model: keel.Model, prompts: list[str], texts: list[str]) -> np.ndarray:
    return continuation_log_probs(next_token_model(model), encode_continuations(model.tokenizer, prompts, texts))


def labelled_and_zero_shot(say: Say, model: keel.Model | None = None, data: Path | None = None) -> Verdict:
    """141: the same questions for a fine-tuned reader, by number of labels, and for a language model without any."""
    if model is None:
        random = Random(0)
        model, reader = keel.Model.load("english-gpt"), keel.Model.load("english")
        train, test = (read_answers([_record(random) for _ in range(count)]) for count in (40, 80))
        sizes, settings, tokens = (10, 40), {"epochs": 10, "batch": 8, "lr": 3e-4}, 8
        names = "english-gpt", "english"
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
        reader, names = model, ("the language model", "the same network")
    zero = _zero_shot(model, test, tokens)
    say(f"{names[0]} without labels, {len(test)} passages and questions as prompts: F1 {100 * zero:.1f}")
    found = {}
    for size in (1, *sizes):
        tuned = keel.finetune(reader, train.take(range(size)), task="answer", dev=None, progress=False, **settings)
        found[size] = keel.evaluate(tuned, test).values["answer_f1"].value
        say(f"{names[1]} fine-tuned on {pluralize(size, 'labelled answer')}: F1 {100 * found[size]:.1f}")
    needed = [size for size in found if found[size] > zero]
    enough = f"from {pluralize(needed[0], 'label')} on" if needed else "with none of these numbers of labels"
    return Verdict(
        zero > found[1] + 0.1,
        f"without labels {names[0]} has F1 {100 * zero:.1f}, a reader with one label {100 * found[1]:.1f}; fine-tuned, "
        f"{names[1]} is better {enough}",
    )


def _zero_shot(model: keel.Model, test: Examples, tokens: int) -> float:
    """Mean F1 of what the model writes after the passage and the question."""
    assert test.seconds is not None
    scores, scorer = [], AnswerScorer("english")
    for question, passage, answers in zip(test.texts, test.seconds, test.values, strict=True):
        found = keel.ask(passage, question, model=model, tokens=tokens, cut=True, on_event=ignore)
        scores.append(scorer.f1(found.text, answers.texts))
    return float(np.mean(scores))


def _record(random: Random) -> dict[str, Any]:
    """A passage of two facts, and a question about one of them."""
    names, cities = ([each.capitalize() for each in random.sample(known, 2)] for known in (NAMES, CITIES))
    facts = [f"{name} lives in {city}." for name, city in zip(names, cities, strict=True)]
    queried = random.randrange(2)
    answers = {"text": [cities[queried]]}
    return {"context": " ".join(facts), "question": f"Where does {names[queried]} live?", "answers": answers}
