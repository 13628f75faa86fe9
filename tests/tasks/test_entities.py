"""Entities are those that conlleval sees, whatever stands in the tags."""

import random

import pytest

from keel.tasks.entities import Entity, Scheme, all_tags, allowed, breaks, entities, scheme_of, write_tags

LETTERS: dict[Scheme, str] = {"BIO1": "BI", "BIO": "BI", "BIOES": "BIES", "BMES": "BMES"}
SCHEMES = list(LETTERS)


def random_tags(draw: random.Random, letters: str, types: list[str], outside: int = 2) -> list[str]:
    names = ["O"] * outside + [f"{letter}-{kind}" if kind else letter for letter in letters for kind in types]
    return draw.choices(names, k=draw.randint(0, 9))


def random_entities(draw: random.Random, length: int) -> list[Entity]:
    found: list[Entity] = []
    place = draw.randint(0, 2)
    while place < length:
        end = min(length, place + draw.randint(1, 4))
        found.append(Entity(draw.choice(["LOC", "PER"]), place, end))
        place = end + draw.choice([0, 0, 1, 3])
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("types", [["A", "B"], ["A"], ["x-y", "z"], [""]])
def test_entities_are_those_of_seqeval(scheme: Scheme, types: list[str]) -> None:
    from seqeval.metrics.sequence_labeling import get_entities

    draw = random.Random(f"{scheme} {types}")
    for _ in range(10_000):
        tags = random_tags(draw, LETTERS[scheme], types)
        # seqeval calls the inside I, and what has no type "_".
        theirs = get_entities([f"I{tag[1:]}" if tag[0] == "M" else tag for tag in tags])
        expected = [Entity("" if kind == "_" else kind, start, end + 1) for kind, start, end in theirs]
        assert entities(tags) == expected, tags


@pytest.mark.parametrize("scheme", SCHEMES)
def test_f1_is_that_of_seqeval(scheme: Scheme) -> None:
    from seqeval.metrics import f1_score, precision_score, recall_score

    draw = random.Random(7)
    truth, guess = [], []
    for number in range(10_000):
        tags = random_tags(draw, LETTERS[scheme].replace("M", "I"), ["A", "B", "C"])
        other = [tag if draw.random() < 0.8 else draw.choice(["O", "I-A", "B-B"]) for tag in tags]
        truth.append(tags)
        guess.append(other if number % 2 else tags[::-1])
    pairs = [({*entities(one)}, {*entities(two)}) for one, two in zip(truth, guess, strict=True)]
    hits, true, guessed = (sum(map(len, group)) for group in zip(*((a & b, a, b) for a, b in pairs), strict=True))
    assert f1_score(truth, guess) == pytest.approx(2 * hits / (true + guessed))
    assert precision_score(truth, guess) == pytest.approx(hits / guessed)
    assert recall_score(truth, guess) == pytest.approx(hits / true)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tags_are_written_read_and_known_again(scheme: Scheme) -> None:
    draw = random.Random(3)
    written = []
    for _ in range(300):
        length = draw.randint(0, 12)
        found = random_entities(draw, length)
        tags = write_tags(found, length, scheme)
        assert entities(tags) == found
        assert not list(breaks(tags, scheme))
        written.append(tags)
    assert scheme_of(written) == scheme
    assert {tag for tags in written for tag in tags} <= all_tags(["B-LOC", "I-PER"], scheme)


def test_a_scheme_is_known_by_what_most_tags_do() -> None:
    assert scheme_of([["DET", "NOUN"]]) == "none"
    assert scheme_of([["O", "O"]]) == "none"
    assert scheme_of([["O-", "B-A"]]) == "none"
    assert scheme_of([list("BMESSBE")]) == "BMES"
    assert scheme_of([["U-A", "O", "B-A", "L-A"]]) == "BIOES"
    # One slip does not make another scheme of a file.
    assert scheme_of([["I-A", "O", "I-B"], ["B-A", "I-A"], ["O", "I-A"]]) == "BIO1"
    assert scheme_of([["B-A", "O", "I-B"], ["B-A", "I-A"]]) == "BIO"


def test_what_is_outside_is_kept_wherever_it_occurs() -> None:
    assert all_tags("BE", "BMES") == {*"BMES"}
    assert all_tags("BEO", "BMES") == {*"BMESO"}
    assert all_tags(["O"], "BMES") == {"O"}


@pytest.mark.parametrize(
    ("tags", "scheme", "places"),
    [
        ("O I-A O", "BIO", [1]),
        ("I-A B-A I-B", "BIO", [0, 2]),
        ("B-A I-A O", "BIO", []),
        ("B-A O", "BIOES", [1]),
        ("B-A", "BIOES", [0]),
        ("S-A I-A E-A", "BIOES", [1]),
        ("B E S M", "BMES", [3, 3]),
        ("I-A B-A", "BIO1", []),
    ],
)
def test_tags_out_of_place_are_found(tags: str, scheme: Scheme, places: list[int]) -> None:
    assert list(breaks(tags.split(), scheme)) == places


def test_what_may_follow_is_what_does_not_break() -> None:
    names = sorted(all_tags(["B-A", "B-B"], "BIOES"))
    possible = allowed(names, "BIOES")
    assert possible is not None
    starts, steps, ends = possible
    for number, name in enumerate(names):
        assert bool(starts[number]) == (0 not in set(breaks([name, *closing(name)], "BIOES")))
        assert bool(ends[number]) == (name[0] in "OES")
    assert bool(steps[names.index("B-A"), names.index("E-A")])
    assert not bool(steps[names.index("B-A"), names.index("E-B")])
    assert allowed(["NOUN"], "none") is None


def closing(name: str) -> list[str]:
    return [f"E{name[1:]}"] if name[0] in "BI" else []
