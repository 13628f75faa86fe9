"""Cleaning: one variant of each label, no empty and no duplicate rows."""

from keel.data.examples import read_examples
from keel.data.label_cleaning import clean_examples, label_variants, match_labels
from keel.data.tagged_sentences import read_tagged_sentences


def test_labels_are_merged_towards_the_most_frequent_variant() -> None:
    counts = {"Positive": 5, "positive": 3, "positive ": 4, "negative": 9, "NEGATIVE": 9, "so  so": 1}
    assert label_variants(counts) == {
        "Positive": "positive", "positive ": "positive", "negative": "NEGATIVE", "so  so": "so so"
    }  # fmt: skip
    assert label_variants({"a": 1, "b": 1}) == {}
    assert label_variants({"1": 3, "1.0": 5, "2.00": 1, "2": 4}) == {"1": "1.0", "2.00": "2"}
    assert label_variants({"1.5": 1, "1": 1, "v1.0": 1, "v1": 1, "10": 1}) == {}


def test_copies_and_empty_rows_are_dropped() -> None:
    rows = [("a", "x"), ("b", "X"), ("a ", "x"), (" ", "x"), ("b", "y"), ("c", "x"), ("b", "x")]
    cleaned = clean_examples(read_examples(rows, pair=False))
    assert cleaned.kept == [0, 1, 4, 5]  # b has two labels, and only a reader knows which one is right
    assert cleaned.examples.values == ["x", "x", "y", "x"]
    assert cleaned.examples.names == ("x", "y")
    assert (cleaned.relabelled, cleaned.empty, cleaned.duplicates) == (1, 1, 2)


def test_several_labels_and_pairs() -> None:
    several = clean_examples(read_examples([("a", ["x", "X"]), ("b", ["x"]), ("c", [])], pair=False))
    assert several.examples.values == [("X",), ("X",), ()] or several.examples.values == [("x",), ("x",), ()]
    pairs = clean_examples(
        read_examples([("a", "b", "x"), ("a", "b", "x"), ("a", "", "x"), ("a", "c", "y")], pair=True)
    )
    assert pairs.kept == [0, 3]


def test_tags_keep_their_case() -> None:
    sentences = read_tagged_sentences([(["a", "b"], ["NN", "nn"]), (["a", "b"], ["NN", "nn"])])
    cleaned = clean_examples(sentences)
    assert cleaned.examples.names == ("NN", "nn")
    assert cleaned.kept == [0]


def test_labels_of_a_test_file_are_written_as_in_training() -> None:
    test = read_examples([("a", "Good "), ("b", "new")], pair=False)
    assert match_labels(test, ("bad", "good")).values == ["good", "new"]


def test_whole_numbers_with_and_without_decimals_are_one_class() -> None:
    rows = [("a", "1"), ("b", "1.0"), ("c", "0"), ("d", "0.0"), ("e", "1")]
    assert clean_examples(read_examples(rows, pair=False)).examples.names == ("0", "1")
    test = match_labels(read_examples([("f", "1.0"), ("g", "0.0")], pair=False), ("0", "1"))
    assert test.values == ["1", "0"]
