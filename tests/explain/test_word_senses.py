"""Which uses of a word mean the same."""

import time

import numpy as np
import pytest

from keel.api.vectors import senses
from keel.errors import KeelError, UsageError
from keel.explain.word_senses import WordUse, compare_senses, find_uses, use_vectors
from keel.formats.vector_files import Vectors
from keel.model import Model
from keel.text_vectors import TokenVectors

TEXTS = ["The bank lends.", "a Bank of mud; the bank, wet", "embankment", "nothing"]


def test_a_word_is_found_wherever_it_stands_by_itself() -> None:
    uses = find_uses("bank", TEXTS)
    assert [use.text[use.start : use.end] for use in uses] == ["bank", "Bank", "bank"]
    assert [use.text for use in uses] == [TEXTS[0], TEXTS[1], TEXTS[1]]
    assert len(find_uses("行", ["银行在街上", "他行路"])) == 2
    assert len(find_uses("カフェ", ["このカフェは", "カフェで"])) == 2
    assert [use.text for use in find_uses("café", ["Café!", "un café", "cafés", "décafé"])] == ["Café!", "un café"]
    for word, what in (("mud", "occurs only once"), ("water", "does not occur")):
        with pytest.raises(KeelError, match=what) as refusal:
            find_uses(word, TEXTS)
        assert refusal.value.exit_code == 1, "the command was right, the text was not"
    with pytest.raises(KeelError, match="'mud' does not occur in the 1 sentence: give two uses"):
        find_uses("mud", ["water"])


def test_use_vector_is_the_mean_of_its_subwords() -> None:
    words = TokenVectors(["the", "ban", "##k", "."], [(0, 3), (4, 7), (7, 8), (8, 9)], np.arange(8.0).reshape(4, 2))
    found = use_vectors([WordUse("the bank.", 4, 8)], [words])
    assert found.tolist() == [[3.0, 4.0]]


def test_uses_that_point_the_same_way_are_one_group() -> None:
    uses = [WordUse(f"bank {number}", 0, 4) for number in range(5)]
    vectors = np.array([[1, 0.1, 0], [0, 1, 0.1], [1, 0, 0.1], [0.1, 1, 0], [0, 0.1, 1]], np.float32)
    found = compare_senses("bank", "m", uses, vectors)
    assert found.groups == [0, 1, 0, 1, 2]
    assert np.allclose(np.diag(found.cosines), 1)
    assert found.cosines[0, 2] > 0.9 > 0.3 > found.cosines[0, 1]
    assert compare_senses("bank", "m", uses, vectors, groups=1).groups == [0] * 5
    assert len(found.lines()) == 7
    assert found.lines()[2].endswith("A  bank 0")
    assert found.to_dict()["uses"][4]["group"] == "C"
    with pytest.raises(UsageError, match="6 groups"):
        compare_senses("bank", "m", uses, vectors, groups=6)


@pytest.mark.parametrize("seed", range(12))
def test_groups_are_those_of_plain_average_linkage(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = 3 + seed % 8
    vectors = 2 * random.normal(size=(3, 5))[random.integers(3, size=size)] + random.normal(size=(size, 5))
    uses = [WordUse(f"bank {number}", 0, 4) for number in range(size)]
    stages = _merge_stages(compare_senses("bank", "m", uses, vectors).cosines)
    for count, stage in stages.items():
        assert compare_senses("bank", "m", uses, vectors, groups=count).groups == _numbered(stage)
    cosines = compare_senses("bank", "m", uses, vectors).cosines
    best = max(range(2, size), key=lambda count: _silhouette(cosines, stages[count]))
    assert compare_senses("bank", "m", uses, vectors).groups == _numbered(stages[best])


def _merge_stages(cosines: np.ndarray) -> dict[int, list[list[int]]]:
    """All means recomputed at each stage."""
    members = [[number] for number in range(len(cosines))]
    stages = {}
    while members:
        stages[len(members)] = [list(group) for group in members]
        pairs = [(a, b) for b in range(len(members)) for a in range(b)]
        if not pairs:
            break
        one, other = max(pairs, key=lambda pair: cosines[np.ix_(members[pair[0]], members[pair[1]])].mean())
        members[one] += members.pop(other)
    return stages


def _silhouette(cosines: np.ndarray, groups: list[list[int]]) -> float:
    values = []
    for group in groups:
        for use in group:
            others = [each for each in group if each != use]
            near = min(1 - cosines[use, other].mean() for other in groups if other is not group)
            own = 1 - cosines[use, others].mean() if others else near
            values.append((near - own) / max(near, own))
    return float(np.mean(values))


def _numbered(groups: list[list[int]]) -> list[int]:
    ordered = sorted(groups, key=min)
    return [next(n for n, group in enumerate(ordered) if use in group) for use in range(sum(map(len, groups)))]


def test_hundreds_of_uses_are_grouped_at_once() -> None:
    random = np.random.default_rng(0)
    meant = np.arange(600) % 3
    vectors = 5 * np.eye(8)[meant] + random.normal(size=(600, 8)) / 2
    uses = [WordUse(f"bank {number}", 0, 4) for number in range(600)]
    begin = time.process_time()
    assert compare_senses("bank", "m", uses, vectors).groups == meant.tolist()
    assert time.process_time() - begin < 20, "means are updated, not computed again"


def test_equal_vectors_form_one_cluster() -> None:
    uses = [WordUse(f"bank {number}", 0, 4) for number in range(4)]
    vectors = np.array([[1, 0], [1, 0.09], [1, 0.01], [1, 0.02]], np.float32)
    found = compare_senses("bank", "m", uses, vectors)
    assert 0.995 < found.cosines.min() < 0.999
    assert found.groups == [0] * 4
    assert found.lines()[-1].startswith("m does not distinguish these uses: all cosines are 1.00")
    assert found.to_dict()["note"] == found.lines()[-1]
    vectors[1, 1] = 0.2
    separated = compare_senses("bank", "m", uses, vectors)
    assert separated.groups == [0, 1, 0, 0]
    assert separated.lines()[-1].endswith("bank 3")
    assert "note" not in separated.to_dict()


def test_of_many_uses_the_first_are_shown() -> None:
    uses = [WordUse(f"bank {number}", 0, 4) for number in range(300)]
    vectors = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    lines = compare_senses("bank", "m", uses, vectors, groups=2).lines()
    assert len(lines) == 23
    assert len(lines[1].split()) == 20
    assert lines[21].endswith("bank 19")
    assert lines[22] == "showing 20 of 300 uses: --json prints all"
    assert len(compare_senses("bank", "m", uses[:20], vectors[:20], groups=2).lines()) == 22


def test_of_a_long_text_the_part_around_the_word_is_printed() -> None:
    text = f"{'far ' * 100}river\nbank {'away ' * 100}"
    uses = find_uses("bank", [text, "the bank"])
    line = compare_senses("bank", "m", uses, np.eye(2, dtype=np.float32), groups=2).lines()[2]
    assert "river [bank] away" in line
    assert len(line) < 100


def test_a_static_vector_is_the_same_everywhere() -> None:
    model = Model.of_vectors(Vectors(["bank", "river"], np.eye(2, dtype=np.float32)), title="static")
    found = senses("bank", ["the bank lends", "a river bank", "bank"], model=model)
    assert np.allclose(found.cosines, 1)
    assert found.groups == [0, 0, 0]
    assert found.note.startswith("static does not distinguish these uses")
    notes: list[str] = []
    twice = ["a bank", "a bank", "the bank of a bank"]
    assert len(senses("bank", twice, model=model, on_event=lambda event: notes.append(event["text"])).uses) == 4
    assert notes == []
    senses("bank", [*twice, "mud", "mud"], model=model, on_event=lambda event: notes.append(event["text"]))
    senses("bank", [*twice, "mud"], model=model, on_event=lambda event: notes.append(event["text"]))
    assert notes == [
        "2 of 5 sentences without 'bank' left out",
        "1 of 4 sentences without 'bank' left out",
    ]
    with pytest.raises(KeelError, match="static has no vector for 'mud'"):
        senses("mud", ["mud here", "mud there"], model=model)
