"""A tokenizer and a BERT small enough to learn in seconds, and texts whose label is given by one word."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from keel.config import replace
from keel.data.corpus import Corpus
from keel.data.examples import Examples, read_examples
from keel.data.tokenizer import Tokenizer
from keel.systems.bert import Bert
from keel.tasks import TASKS
from keel.tasks.classify import TextClassification

WORDS = "the a film story actor scene and with of it was very long short old new quiet loud red blue house garden"
LABEL_WORDS = {"good": "wonderful", "bad": "dreadful", "odd": "strange"}

MakeTask = Callable[..., TextClassification]


def sentences(count: int, labels: list[str], seed: int = 0, longest: int = 12) -> list[tuple[str, str]]:
    """(text, label) pairs: some words, one of which gives the label away."""
    rng = random.Random(seed)
    pairs = []
    for number in range(count):
        words: list[str] = rng.choices(WORDS.split(), k=rng.randint(2, longest))
        label = labels[number % len(labels)]
        words.insert(rng.randint(0, len(words)), LABEL_WORDS[label])
        pairs.append((" ".join(words), label))
    return pairs


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    text = " ".join([WORDS, *LABEL_WORDS.values()])
    return Tokenizer.train(Corpus.of([text] * 4), kind="words", size=100)


@pytest.fixture
def make_task(tokenizer: Tokenizer) -> MakeTask:
    """A task on a new little BERT with random weights, for the labels of some examples."""

    def make(examples: Examples, name: str = "classify", positions: int = 64, **settings: Any) -> TextClassification:
        torch.manual_seed(0)
        size: dict[str, int] = {
            "layers": 1,
            "width": 32,
            "head_dim": 16,
            "max_positions": positions,
            "sequence_length": positions,
        }
        system = replace(Bert(dropout=0.0, attention_dropout=0.0), **size)
        task = TASKS[name](system, system.build_encoder(len(tokenizer)), tokenizer, examples.labels, **settings)
        assert isinstance(task, TextClassification)
        return task

    return make


@pytest.fixture
def reviews() -> Examples:
    return read_examples(sentences(96, ["good", "bad"]), pair=False)


@pytest.fixture(scope="session")
def make_sentences() -> Callable[..., list[tuple[str, str]]]:
    return sentences
