"""Which uses of a word mean the same."""

import numpy as np
import pytest

from keel.errors import UsageError
from keel.explain.senses import Use, compare, find_uses, vectors_of
from keel.formats.vectors import Vectors
from keel.model import Model, WordVectors
from keel.words import senses

TEXTS = ["The bank lends.", "a Bank of mud; the bank, wet", "embankment", "nothing"]


def test_a_word_is_found_wherever_it_stands_by_itself() -> None:
    uses = find_uses("bank", TEXTS)
    assert [use.text[use.start : use.end] for use in uses] == ["bank", "Bank", "bank"]
    assert [use.text for use in uses] == [TEXTS[0], TEXTS[1], TEXTS[1]]
    assert len(find_uses("行", ["银行在街上", "他行路"])) == 2
    assert len(find_uses("カフェ", ["このカフェは", "カフェで"])) == 2
    assert [use.text for use in find_uses("café", ["Café!", "un café", "cafés", "décafé"])] == ["Café!", "un café"]
    with pytest.raises(UsageError, match="one place alone"):
        find_uses("mud", TEXTS)
    with pytest.raises(UsageError, match="nowhere"):
        find_uses("water", TEXTS)


def test_the_vector_of_a_use_is_the_mean_of_its_pieces() -> None:
    words = WordVectors(["the", "ban", "##k", "."], [(0, 3), (4, 7), (7, 8), (8, 9)], np.arange(8.0).reshape(4, 2))
    found = vectors_of([Use("the bank.", 4, 8)], [words])
    assert found.tolist() == [[3.0, 4.0]]


def test_uses_that_point_the_same_way_are_one_group() -> None:
    uses = [Use(f"bank {number}", 0, 4) for number in range(5)]
    vectors = np.array([[1, 0.1, 0], [0, 1, 0.1], [1, 0, 0.1], [0.1, 1, 0], [0, 0.1, 1]], np.float32)
    found = compare("bank", "m", uses, vectors)
    assert found.groups == [0, 1, 0, 1, 2]
    assert np.allclose(np.diag(found.cosines), 1)
    assert found.cosines[0, 2] > 0.9 > 0.3 > found.cosines[0, 1]
    assert compare("bank", "m", uses, vectors, groups=1).groups == [0] * 5
    assert len(found.lines()) == 7
    assert found.lines()[2].endswith("A  bank 0")
    assert found.to_dict()["uses"][4]["group"] == "C"
    with pytest.raises(UsageError, match="6 groups"):
        compare("bank", "m", uses, vectors, groups=6)


def test_a_static_vector_is_the_same_everywhere() -> None:
    model = Model.of_vectors(Vectors(["bank", "river"], np.eye(2, dtype=np.float32)), title="static")
    found = senses("bank", ["the bank lends", "a river bank", "bank"], model=model)
    assert np.allclose(found.cosines, 1)
    assert found.groups == [0, 0, 0]
    said: list[str] = []
    twice = ["a bank", "a bank", "the bank of a bank"]
    assert len(senses("bank", twice, model=model, on_event=lambda event: said.append(event["text"])).uses) == 4
    assert said == []
    senses("bank", [*twice, "mud", "mud"], model=model, on_event=lambda event: said.append(event["text"]))
    assert said == ["2 of 5 sentences do not hold 'bank': they are left out"]
    with pytest.raises(UsageError, match="static has no vector for 'mud'"):
        senses("mud", ["mud here", "mud there"], model=model)
