"""Entities are those that conlleval sees, whatever stands in the tags."""

import random
import warnings
from typing import Any

import numpy as np
import pytest

from keel.data.examples import Example, Examples, Labels
from keel.data.label_kinds import TagLabels
from keel.data.predictions import TagPredictions
from keel.data.tag_schemes import (
    Entity,
    Scheme,
    allowed_transitions,
    complete_tags,
    detect_scheme,
    extract_entities,
    invalid_transitions,
    write_tags,
)
from keel.metrics import bootstrap as score_module
from keel.metrics.tagging_scores import score_tags

PREFIXES: dict[Scheme, str] = {"BIO1": "BI", "BIO": "BI", "BIOES": "BIES", "BMES": "BMES"}
SCHEMES = list(PREFIXES)


def random_tags(rng: random.Random, prefixes: str, types: list[str], outside: int = 2) -> list[str]:
    names = ["O"] * outside + [f"{prefix}-{kind}" if kind else prefix for prefix in prefixes for kind in types]
    return rng.choices(names, k=rng.randint(0, 9))


def random_entities(rng: random.Random, length: int) -> list[Entity]:
    found: list[Entity] = []
    place = rng.randint(0, 2)
    while place < length:
        end = min(length, place + rng.randint(1, 4))
        found.append(Entity(rng.choice(["LOC", "PER"]), place, end))
        place = end + rng.choice([0, 0, 1, 3])
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("types", [["A", "B"], ["A"], ["x-y", "z"], [""]])
def test_entities_are_those_of_seqeval(scheme: Scheme, types: list[str]) -> None:
    from seqeval.metrics.sequence_labeling import get_entities

    rng = random.Random(f"{scheme} {types}")
    for _ in range(10_000):
        tags = random_tags(rng, PREFIXES[scheme], types)
        # seqeval calls the inside I, and what has no type "_".
        theirs = get_entities([f"I{tag[1:]}" if tag[0] == "M" else tag for tag in tags])
        expected = [Entity("" if kind == "_" else kind, start, end + 1) for kind, start, end in theirs]
        assert extract_entities(tags) == expected, tags


def random_guess(rng: random.Random, tags: list[str], names: list[str], kind: int) -> list[str]:
    """Tags that err as a model may, or as none would."""
    if kind == 0:
        return tags[::-1]
    if kind == 1:
        return [tag if rng.random() < 0.8 else rng.choice(names) for tag in tags]
    if kind == 2:  # all bounds unchanged, all types wrong
        return [tag[0] + tag[1:].translate(str.maketrans("ABC", "BCA")) for tag in tags]
    if kind == 3:  # all types unchanged, every beginning an inside
        return [f"I{tag[1:]}" if tag[0] in "BS" and tag[1:] else tag for tag in tags]
    if kind == 4:
        return ["O"] * len(tags)
    return rng.choices(names, k=len(tags))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_are_those_of_seqeval(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqeval import metrics as theirs

    judge: Any = theirs.classification_report
    monkeypatch.setattr(score_module, "RESAMPLES", 1)  # intervals are not compared
    rng = random.Random(7)
    prefixes, types = PREFIXES[scheme], ["A", "B", "C"]
    names = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in types)]
    if "I" not in prefixes:
        names += [f"I-{kind}" for kind in types]  # which some guesses have, whatever the scheme
    for batch in range(400):
        truth = [random_tags(rng, prefixes, types) for _ in range(24)] + [[names[1]]]
        guess = [random_guess(rng, tags, names, rng.randrange(6) if batch % 2 else batch // 2 % 6) for tags in truth]
        scores = score_tags(*tagged(truth, guess, names))
        # seqeval calls the inside I.
        sides = [
            [[f"I{tag[1:]}" if tag[0] == "M" else tag for tag in tags] for tags in side] for side in (truth, guess)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells of each type that nobody guessed
            report = judge(*sides, output_dict=True, zero_division=0)
        kinds = {*types} & report.keys()
        assert scores.by_label.keys() == kinds
        values = scores.values
        found = {kind: [each.precision, each.recall, each.f1] for kind, each in scores.by_label.items()}
        found["micro avg"] = [values["precision"], values["recall"], values["entity_f1"]]
        for kind, ours in found.items():
            expected = [report[kind][name] for name in ("precision", "recall", "f1-score")]
            assert [score.value for score in ours] == pytest.approx(expected), (kind, truth, guess)
        assert all(each.support == report[kind]["support"] for kind, each in scores.by_label.items())


def tagged(truth: list[list[str]], guess: list[list[str]], names: list[str]) -> tuple[Examples, TagPredictions]:
    words = [tuple("w" * len(tags)) for tags in truth]
    examples = [
        Example(text=" ".join(each), second=None, label=tuple(tags), location="", words=each)
        for each, tags in zip(words, truth, strict=True)
    ]
    numbers = np.array([names.index(tag) for tags in guess for tag in tags], int)
    labels = Labels(kind=TagLabels(), names=tuple(names))
    predictions = TagPredictions(labels, np.ones(len(numbers)), numbers, [(" ".join(each), each) for each in words])
    return Examples.of(examples, TagLabels(), "made up", tuple(names)), predictions


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tags_are_written_read_and_known_again(scheme: Scheme) -> None:
    rng = random.Random(3)
    written = []
    for _ in range(300):
        length = rng.randint(0, 12)
        found = random_entities(rng, length)
        tags = write_tags(found, length, scheme)
        assert extract_entities(tags) == found
        assert not list(invalid_transitions(tags, scheme))
        written.append(tags)
    assert detect_scheme(written) == scheme
    assert {tag for tags in written for tag in tags} <= complete_tags(["B-LOC", "I-PER"], scheme)


def test_a_scheme_is_known_by_what_most_tags_do() -> None:
    assert detect_scheme([["DET", "NOUN"]]) == "none"
    assert detect_scheme([["O", "O"]]) == "none"
    assert detect_scheme([["O-", "B-A"]]) == "none"
    assert detect_scheme([list("BMESSBE")]) == "BMES"
    assert detect_scheme([["U-A", "O", "B-A", "L-A"]]) == "BIOES"
    # One slip does not make another scheme of a file.
    assert detect_scheme([["I-A", "O", "I-B"], ["B-A", "I-A"], ["O", "I-A"]]) == "BIO1"
    assert detect_scheme([["B-A", "O", "I-B"], ["B-A", "I-A"]]) == "BIO"


def test_what_is_outside_is_kept_wherever_it_occurs() -> None:
    assert complete_tags("BE", "BMES") == {*"BMES"}
    assert complete_tags("BEO", "BMES") == {*"BMESO"}
    assert complete_tags(["O"], "BMES") == {"O"}


@pytest.mark.parametrize(
    ("tags", "scheme", "positions"),
    [
        ("O I-A O", "BIO", [1]),
        ("I-A B-A I-B", "BIO", [0, 2]),
        ("B-A I-A O", "BIO", []),
        ("B-A O", "BIOES", [1]),
        ("B-A", "BIOES", [1]),
        ("S-A I-A E-A", "BIOES", [1]),
        ("B E S M", "BMES", [3, 4]),
        ("I-A B-A", "BIO1", []),
    ],
)
def test_tags_out_of_place_are_found(tags: str, scheme: Scheme, positions: list[int]) -> None:
    assert list(invalid_transitions(tags.split(), scheme)) == positions


def test_what_may_follow_is_what_does_not_break() -> None:
    names = sorted(complete_tags(["B-A", "B-B"], "BIOES"))
    possible = allowed_transitions(names, "BIOES")
    assert possible is not None
    starts, steps, ends = possible
    for number, name in enumerate(names):
        assert bool(starts[number]) == (0 not in set(invalid_transitions([name, *closing(name)], "BIOES")))
        assert bool(ends[number]) == (name[0] in "OES")
    assert bool(steps[names.index("B-A"), names.index("E-A")])
    assert not bool(steps[names.index("B-A"), names.index("E-B")])
    assert allowed_transitions(["NOUN"], "none") is None


def closing(name: str) -> list[str]:
    return [f"E{name[1:]}"] if name[0] in "BI" else []
