"""Terms are found from left to right, the longest first, at word bounds where a script has them."""

from pathlib import Path

import numpy as np
import pytest

from keel.data.term_matcher import TermMatcher
from keel.errors import KeelError


def search(matcher: TermMatcher, *texts: str) -> list[tuple[str, str]]:
    """What stands where terms are found, and the terms."""
    spans, numbers = matcher.find([*texts])
    whole = "".join(texts)
    return [
        (whole[start:end], matcher.terms[number])
        for (start, end), number in zip(spans.tolist(), numbers.tolist(), strict=True)
    ]


def test_the_longest_term_is_found_from_the_left() -> None:
    matcher = TermMatcher(["北京", "北京大学", "大学生", "学生"])
    assert search(matcher, "北京大学生在北京") == [("北京大学", "北京大学"), ("北京", "北京")]
    assert search(matcher, "大学生") == [("大学生", "大学生")]


def test_terms_of_an_alphabet_are_whole_words() -> None:
    matcher = TermMatcher(["Ann", "New York", "Straße", "2020"])
    text = "Ann, Annual Hann Ann-Marie New York's New Yorker Straße 12020 2020年"
    assert [term for _, term in search(matcher, text)] == ["Ann", "Ann", "New York", "Straße", "2020"]
    assert search(TermMatcher(["東京", "アメリカ"]), "東京とアメリカの") == [("東京", "東京"), ("アメリカ", "アメリカ")]


def test_case_counts_unless_it_is_ignored() -> None:
    assert not search(TermMatcher(["Paris"]), "PARIS paris")
    matcher = TermMatcher(["paris", "ærø"], ignore_case=True)
    assert search(matcher, "PARIS Paris", "İ Ærø") == [("PARIS", "paris"), ("Paris", "paris"), ("Ærø", "ærø")]


def test_no_term_goes_from_one_text_into_the_next() -> None:
    assert search(TermMatcher(["北京大学"]), "北京", "大学", "", "北京大学") == [("北京大学", "北京大学")]
    spans, numbers = TermMatcher(["a"]).find([])
    assert spans.shape == (0, 2)
    assert len(numbers) == 0


def test_many_random_terms_are_those_of_a_slow_search() -> None:
    rng = np.random.default_rng(0)
    characters = np.array(list("天地人和"))
    terms = {"".join(rng.choice(characters, rng.integers(1, 5))) for _ in range(60)}
    text = "".join(rng.choice(characters, 3000))
    expected, place = [], 0
    while place < len(text):
        longest = max((term for term in terms if text.startswith(term, place)), key=len, default="")
        expected += [longest] * bool(longest)
        place += len(longest) or 1
    assert [term for _, term in search(TermMatcher(terms), text)] == expected


def test_a_file_has_a_term_per_line_and_more_after_a_tab(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("\ufeffNew York\tLOC\n\n  北京大学 \r\nNew York\n", encoding="utf-8")
    matcher = TermMatcher.read(path)
    assert matcher.terms == ["New York", "北京大学"]
    assert matcher.fingerprint() == TermMatcher(["北京大学", "New York"]).fingerprint()
    assert matcher.fingerprint() != TermMatcher(matcher.terms, ignore_case=True).fingerprint()


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("\n \n\tLOC\n")
    with pytest.raises(KeelError, match=r"names\.txt lists nothing: write one name or phrase per line"):
        TermMatcher.read(tmp_path / "names.txt")
    with pytest.raises(KeelError, match="no file"):
        TermMatcher.read(tmp_path / "other.txt")
