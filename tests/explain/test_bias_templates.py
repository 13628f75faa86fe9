"""Templates and word lists: ours are complete, a user's replace them, and mistakes have a place."""

from pathlib import Path

import pytest

from keel.errors import KeelError, UsageError
from keel.explain.bias.bias_templates import BiasLanguage, fill_template, parse_pair, read_occupations, read_templates


@pytest.mark.parametrize("language", ["en", "zh"])
def test_our_templates_are_complete(language: BiasLanguage) -> None:
    found = read_templates(language)
    assert len(found.occupations) == len({*found.occupations}) == 40
    assert len(found.sentences) == 12
    assert len(found.attention_sentences) == len(found.attention_pairs) == 8
    assert {word for pair in found.attention_pairs for word in pair} <= {*found.occupations}
    for x, y in found.word_sets.values():
        assert len(x) == len(y) == 8
    filled = fill_template(found.sentences[0], {"occupation": found.occupations[0], "pronoun": found.pronouns[0]})
    for name, word in (("occupation", found.occupations[0]), ("pronoun", found.pronouns[0])):
        assert filled.text[slice(*filled.spans[name])] == word


def test_a_sentence_begins_with_a_capital() -> None:
    filled = fill_template("{pronoun} is a {occupation}.", {"pronoun": "she", "occupation": "nurse"})
    assert filled.text == "She is a nurse."
    assert filled.spans == {"pronoun": (0, 3), "occupation": (9, 14)}


def test_files_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(
        "My {occupation} says [MASK] is late.\n\nThe {first} saw the {second}, and {pronoun} left.\n"
    )
    found = read_templates("en", tmp_path / "mine.txt")
    assert found.sentences == ("My {occupation} says {pronoun} is late.",)
    assert len(found.attention_sentences) == 1
    assert found.occupations == read_templates("en").occupations
    (tmp_path / "mine.toml").write_text(
        'pronouns = "they : he"\nattention_pairs = ["a:b"]\n[word_sets]\nx = ["a b", "c d"]\n'
    )
    found = read_templates("en", tmp_path / "mine.toml")
    assert found.pronouns == ("they", "he")
    assert found.attention_pairs == (("a", "b"),)
    assert found.word_sets == {"x": (("a", "b"), ("c", "d"))}
    (tmp_path / "jobs.txt").write_text("nurse\n\n doctor \nnurse\n")
    assert read_occupations(tmp_path / "jobs.txt") == ("nurse", "doctor")
    assert read_occupations(["nurse"]) == ("nurse",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "is empty"),
        ("a.txt", "The {occupation} is late.", r"a\.txt:1: .*\{occupation\}, \{pronoun\}"),
        ("a.txt", "{pronoun} and {pronoun} {occupation}", r"a\.txt:1"),
        ("a.txt", "The {first} saw {pronoun}.", r"a\.txt:1"),
        ("a.toml", "sentence = 1", r"a\.toml: unknown name 'sentence'"),
        ("a.toml", "sentences = 1", "must be a list of texts"),
        ("a.toml", "occupations = []", "must be a list of texts"),
        ("a.toml", 'pronouns = "she"', "is no pair of words"),
        ("a.toml", "neutral = 3", "must be a text"),
        ("a.toml", 'gender_pairs = ["she:she"]', "is no pair of words"),
        ("a.toml", 'word_sets = ["a"]', "must be a table"),
        ("a.toml", '[word_sets]\nx = ["a b", "b c"]', r"word_sets\.x: give two texts of different words"),
        ("a.toml", "x = ", "invalid TOML"),
    ],
)
def test_mistakes_have_a_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(KeelError, match=message):
        read_templates("en", tmp_path / name)


def test_lists_without_words(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    for source in (tmp_path / "empty.txt", [], [" "]):
        with pytest.raises(KeelError, match="empty"):
            read_occupations(source)
    with pytest.raises(KeelError):
        read_occupations(tmp_path / "missing.txt")
    with pytest.raises(UsageError, match="one item per line"):
        read_occupations(tmp_path / "jobs.csv")
    with pytest.raises(UsageError, match="as she:he"):
        parse_pair("she", "--pronouns")
