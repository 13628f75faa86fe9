"""Claims about how a one-way language model is given tasks."""

import tempfile
from pathlib import Path
from random import Random
from typing import Any

import keel
from keel.claims.claim import Finding, Say
from keel.systems.gpt import TASK_TOKENS, Gpt

KINDS = {
    "colour": "red blue green white black yellow", "animal": "dog cat horse cow sheep goat",
    "food": "bread soup cheese rice apple cake", "tool": "hammer saw knife axe spade drill",
}  # fmt: skip
SHAPE: dict[str, Any] = {"layers": 1, "width": 64, "head_dim": 16, "max_positions": 16, "sequence_length": 16}
STILL: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}
ASKED = 500


def four_inputs(say: Say) -> Finding:
    """76: the rows that a GPT reads in four kinds of task, id by id, and what of its weights it begins with."""
    sentences = ["the film was long .", "the film was good .", "a good story ."] * 10
    one, two = "the film was long", "a good story"
    start, ends = "the film was", ["good", "a story"]
    tasks: dict[str, tuple[str, list[Any], Any]] = {
        "classification": ("classify", [(one, "bad"), (two, "good")], [one]),
        "entailment": ("pair", [(one, two, "no"), (two, one, "yes")], [(one, two)]),
        "similarity": ("pair", [(one, two, 0.5), (two, two, 1.0)], [(one, two)]),
        "multiple choice": ("choose", [((start, ends), 0)], [(start, ends)]),
    }  # fmt: skip
    shaped = same = True
    with tempfile.TemporaryDirectory() as folder:
        base = keel.pretrain(
            Gpt(**SHAPE, **STILL),
            keel.Corpus.of(sentences),
            out=Path(folder) / "base",
            tokenizer="words",
            held_out=0.0,
            steps=2,
            batch=4,
        )
    known = base.encoder.state_dict()
    for name, (task, learned, asked) in tasks.items():
        model = keel.finetune(base, learned, task=task, dev=None, steps=1, lr=1e-9)
        assert model.task is not None
        data = model.task.encode_examples(model.task.read_examples(asked), labelled=False)
        marks = [model.tokenizer.special_token_id(mark) for mark in TASK_TOKENS]
        for start, stop in zip(data.starts[:-1], data.starts[1:], strict=True):
            row = data.ids[start:stop].tolist()
            say(f"{name + ':':16} {' '.join(f'{model.tokenizer.token_of(number)}={number}' for number in row)}")
            shaped = shaped and [row[0], row[-1]] == [marks[0], marks[2]]
            shaped = shaped and row.count(marks[1]) == (task != "classify")
        for weight, value in model.encoder.state_dict().items():
            same = same and bool((value[: len(known[weight])] - known[weight]).abs().max() < 1e-6)
    say(f"{', '.join(TASK_TOKENS)} are ids that pre-training did not have; all other weights are the pre-trained ones")
    return Finding(shaped and same, "four tasks are rows of one form, and the network begins with the weights it had")


def one_way_reading(say: Say) -> Finding:
    """77: the answer is to be marked in a text, and the question comes after it, before it, or with the answers."""
    found: dict[tuple[str, str], float] = {}
    for name, system in (("bert", keel.Bert(**SHAPE, **STILL, next_sentence=False)), ("gpt", Gpt(**SHAPE, **STILL))):
        for place in ("after", "before"):
            found[name, place] = _marked(system, place == "before")
            say(f"{name}: the question {place} the text, its answer marked there: right in {found[name, place]:.1%}")
        model = keel.finetune(system, _choices(800, 1), task="choose", **LEARNED)
        found[name, "choices"] = keel.evaluate(model, _choices(ASKED, 2)).main_value
        say(f"{name}: text and question, then each of four choices: right in {found[name, 'choices']:.1%}")
    bert, gpt = found["bert", "after"], found["gpt", "after"]
    figures = f"with the question after the text {gpt:.0%} one way and {bert:.0%} both ways (a guess: 25%); with the "
    figures += f"question before it {found['gpt', 'before']:.0%}, and {found['gpt', 'choices']:.0%} by choosing"
    if bert < 0.8:  # nobody has learned the question
        return Finding(None, figures)
    return Finding(gpt < 0.5, figures)


LEARNED: dict[str, Any] = {"dev": None, "epochs": 20, "lr": 3e-3, "batch": 32, "warmup": 0.1}


def _story(random: Random) -> tuple[list[str], list[str], int]:
    """A text, one word of each kind; a question; and the place of the answer."""
    kinds = random.sample(list(KINDS), 4)
    place = random.randrange(4)
    return [random.choice(KINDS[kind].split()) for kind in kinds], ["which", kinds[place]], place


def _choices(count: int, seed: int) -> list[tuple[tuple[str, list[str]], int]]:
    stories = map(_story, [Random(seed)] * count)
    return [((" ".join([*text, *question]), text), place) for text, question, place in stories]


def _marked(system: keel.Bert | Gpt, question_first: bool) -> float:
    """How often the word that is most surely taken for the answer is the answer."""

    def drawn(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
        rows = []
        for text, question, place in map(_story, [Random(seed)] * count):
            tags = ["answer" if number == place else "other" for number in range(4)]
            parts = [(question, ["other"] * 2), (text, tags)][:: 1 if question_first else -1]
            rows.append(([word for words, _ in parts for word in words], [tag for _, tags in parts for tag in tags]))
        return rows

    model = keel.finetune(system, drawn(800, 1), task="tag", **LEARNED)
    test = drawn(ASKED, 2)
    right = 0
    for said, (_, tags) in zip(model.predict([tuple(words) for words, _ in test]), test, strict=True):
        chances = [p if tag == "answer" else 1 - p for tag, p in zip(said.tags, said.probabilities, strict=True)]
        right += tags[chances.index(max(chances))] == "answer"
    return right / ASKED
