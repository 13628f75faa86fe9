"""Labelled opinions: generated ones whose test words are not those of the training, or published reviews."""

from pathlib import Path
from random import Random

import keel
from keel.claims.example_texts import Language
from keel.claims.small_models import Examples
from keel.tasks import TASKS

THINGS = ["room", "service", "breakfast", "place", "price", "screen", "battery", "story", "food", "staff"]
OPINIONS = {
    "positive": (
        "good great clean lovely pleasant beautiful wonderful friendly excellent fresh perfect charming fine "
        "delightful superb nice"
    ),
    "negative": (
        "bad awful dirty nasty unpleasant ugly terrible rude poor stale horrible boring dreadful noisy disappointing "
        "broken"
    ),
}
REVIEWS: dict[Language, tuple[str, str, str]] = {
    "zh": ("zh/chnsenticorp", "train.tsv*", "test.tsv*"),
    "en": ("glue/SST-2", "train.tsv*", "dev.tsv*"),
}
"""Folder and files of published reviews."""


def generate_unlabelled(count: int, random: Random) -> list[str]:
    """Four opinions each, all positive or all negative."""
    return [_join_opinions([label] * 4, slice(None), random) for label in [*OPINIONS] * (count // 2)]


def generate_opinions(count: int, half: int, random: Random) -> Examples:
    """Three opinions each, two of them of the label; each `half` (0 or 1) has opinion words of its own."""
    found = []
    for number in range(count):
        one, other = [*OPINIONS][:: 1 if number % 2 else -1]
        found.append((_join_opinions(random.sample([one, one, other], 3), slice(half, None, 2), random), one))
    return found


def _join_opinions(labels: list[str], part: slice, random: Random) -> str:
    things = random.sample(THINGS, len(labels))
    words = {label: iter(random.sample(OPINIONS[label].split()[part], labels.count(label))) for label in OPINIONS}
    return " , ".join(f"{thing} {next(words[label])}" for thing, label in zip(things, labels, strict=True))


def read_reviews(data: Path, language: Language) -> tuple[Examples, Examples]:
    """Training and test examples of ChnSentiCorp or SST-2."""
    folder, *patterns = REVIEWS[language]
    train, test = (_labelled(published_file(data / folder, pattern)) for pattern in patterns)
    return train, test


def published_file(folder: Path, pattern: str) -> Path:
    """The file of a published data set."""
    files = sorted(folder.glob(pattern))
    if not files:
        raise keel.UsageError(f"{folder} has no file {pattern}: use --data with the folder that has {folder.name}")
    return files[0]


def _labelled(path: Path) -> Examples:
    read = TASKS["classify"].read_labelled(path)
    return [(text, str(label)) for text, label in zip(read.texts, read.values, strict=True)]
