"""Claims about the tasks of a causal language model."""

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
NO_DROPOUT: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0}
TEST_SIZE = 500


def four_inputs(say: Say) -> Finding:
    """76: GPT's inputs for four kinds of task, token by token, and its initial weights."""
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
            Gpt(**SHAPE, **NO_DROPOUT),
            keel.Corpus.of(sentences),
            out=Path(folder) / "base",
            tokenizer="words",
            held_out=0.0,
            steps=2,
            batch=4,
        )
    known = base.encoder.state_dict()
    for name, (task, learned, queried) in tasks.items():
        model = keel.finetune(base, learned, task=task, dev=None, steps=1, lr=1e-9)
        assert model.task is not None
        data = model.task.encode_examples(model.task.read_examples(queried), labelled=False)
        start_id, delimiter_id, extract_id = map(model.tokenizer.special_token_id, TASK_TOKENS)
        for start, stop in zip(data.starts[:-1], data.starts[1:], strict=True):
            row = data.ids[start:stop].tolist()
            say(f"{name + ':':16} {' '.join(f'{model.tokenizer.token_of(number)}={number}' for number in row)}")
            shaped = shaped and [row[0], row[-1]] == [start_id, extract_id]
            shaped = shaped and row.count(delimiter_id) == (task != "classify")
        for weight, value in model.encoder.state_dict().items():
            same = same and bool((value[: len(known[weight])] - known[weight]).abs().max() < 1e-6)
    say(f"{', '.join(TASK_TOKENS)} are new special tokens; all other weights are the pre-trained ones")
    return Finding(
        shaped and same, "four tasks use one input template, and the network starts from the pre-trained weights"
    )


def unidirectional_reading(say: Say) -> Finding:
    """77: answer tagging with the question after or before the text, and multiple choice."""
    found: dict[tuple[str, str], float] = {}
    for name, system in (
        ("bert", keel.Bert(**SHAPE, **NO_DROPOUT, next_sentence=False)),
        ("gpt", Gpt(**SHAPE, **NO_DROPOUT)),
    ):
        for position in ("after", "before"):
            found[name, position] = _tagging_accuracy(system, position == "before")
            say(f"{name}: question {position} the text, answer tagged in it: accuracy {found[name, position]:.1%}")
        model = keel.finetune(system, _choices(800, 1), task="choose", **TRAINING)
        found[name, "choices"] = keel.evaluate(model, _choices(TEST_SIZE, 2)).main_value
        say(f"{name}: text and question, then each of four choices: accuracy {found[name, 'choices']:.1%}")
    bert, gpt = found["bert", "after"], found["gpt", "after"]
    figures = (
        f"with the question after the text GPT reaches {gpt:.0%}, BERT {bert:.0%} (chance: 25%); with the question "
        f"before it GPT reaches {found['gpt', 'before']:.0%}, and {found['gpt', 'choices']:.0%} by multiple choice"
    )
    if bert < 0.8:  # the task was not learned
        return Finding(None, figures)
    return Finding(gpt < 0.5, figures)


TRAINING: dict[str, Any] = {"dev": None, "epochs": 20, "lr": 3e-3, "batch": 32, "warmup": 0.1}


def _story(random: Random) -> tuple[list[str], list[str], int]:
    """A text with one word of each kind, a question, and the index of the answer."""
    kinds = random.sample(list(KINDS), 4)
    position = random.randrange(4)
    return [random.choice(KINDS[kind].split()) for kind in kinds], ["which", kinds[position]], position


def _choices(count: int, seed: int) -> list[tuple[tuple[str, list[str]], int]]:
    stories = map(_story, [Random(seed)] * count)
    return [((" ".join([*text, *question]), text), position) for text, question, position in stories]


def _tagging_accuracy(system: keel.Bert | Gpt, question_first: bool) -> float:
    """Accuracy of the word with the highest probability of being the answer."""

    def examples(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
        rows = []
        for text, question, position in map(_story, [Random(seed)] * count):
            tags = ["answer" if number == position else "other" for number in range(4)]
            parts = [(question, ["other"] * 2), (text, tags)][:: 1 if question_first else -1]
            rows.append(([word for words, _ in parts for word in words], [tag for _, tags in parts for tag in tags]))
        return rows

    model = keel.finetune(system, examples(800, 1), task="tag", **TRAINING)
    test = examples(TEST_SIZE, 2)
    right = 0
    for prediction, (_, tags) in zip(model.predict([tuple(words) for words, _ in test]), test, strict=True):
        probabilities = [
            p if tag == "answer" else 1 - p for tag, p in zip(prediction.tags, prediction.probabilities, strict=True)
        ]
        right += tags[probabilities.index(max(probabilities))] == "answer"
    return right / TEST_SIZE
