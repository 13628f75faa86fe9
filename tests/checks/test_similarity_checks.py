"""Near-duplicates are found, and texts of a test file that occur in a corpus."""

import random
from pathlib import Path

import pytest

from keel.checks import check
from keel.checks.shingles import near_duplicates, overlapping, signatures
from keel.cli import main
from keel.data.corpus import Corpus

WORDS = [f"{start}{number}" for start in "abcdefgh" for number in range(100)]


def sentences(count: int, seed: int, length: int = 30) -> list[list[str]]:
    chosen = random.Random(seed)
    return [chosen.choices(WORDS, k=length) for _ in range(count)]


def labelled(path: Path, texts: list[list[str]]) -> Path:
    rows = [f"{' '.join(words)}\t{'ab'[number % 2]}" for number, words in enumerate(texts)]
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return path


def test_near_duplicates_of_random_texts_are_the_changed_ones() -> None:
    texts = sentences(500, 0)
    changed = [[*words[:5], "other", *words[6:]] for words in texts[:100]]
    found = near_duplicates(signatures(" ".join(words) for words in texts + changed))
    assert {two - 500 for _, two in found} == {one for one, _ in found}
    assert len(found) > 90
    assert not near_duplicates(signatures(["a b c", "a b c", ""]))


def test_near_duplicates_within_and_between_files(tmp_path: Path) -> None:
    texts = sentences(40, 1)
    train = labelled(tmp_path / "train.tsv", [*texts, [*texts[3][:29], "other"]])
    test = labelled(tmp_path / "test.tsv", [*sentences(40, 2), [*texts[7][:29], "other"]])
    report = check([train, test])
    (within,) = [each for each in report.findings if "1 near-duplicate (" in each.cause]
    assert (within.where, f"of {train}:5" in within.cause) == (f"{train}:42", True)
    (between,) = [each for each in report.findings if each.severity == "warning" and "near-dup" in each.cause]
    assert (between.where, f"{train}:9" in between.cause) == (f"{test}:42", True)


def test_near_duplicate_documents_of_a_corpus(tmp_path: Path) -> None:
    texts = [" ".join(words) + "." for words in sentences(30, 3)]
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join([*texts, "Also " + texts[0], texts[1]]) + "\n")
    (found,) = [each for each in check(path).findings if "near-duplicate" in each.cause]
    assert (found.where, "of line 1)" in found.cause) == (f"{path}:61", True)


def test_overlap_with_a_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = sentences(20, 4)
    corpus = tmp_path / "corpus.txt"
    lines = [" ".join(words) for words in sentences(300, 5)]
    lines[123] = "Before " + " ".join(texts[6][4:20]).upper() + " after."
    corpus.write_text("\n".join(lines) + "\n")
    test = labelled(tmp_path / "test.tsv", [*texts, ["too", "short"]])
    assert main(["check", str(test), "--against", str(corpus)]) == 0
    out = capsys.readouterr().out
    assert "1 of 20 texts (5.0%)" in out
    assert "1 text has fewer than 13 words" in out
    assert f"{test}:8  overlaps with {corpus}:124" in out
    (tmp_path / "plain.txt").write_text("Nothing.\n\n" + " ".join(texts[6]) + "\n")
    report = check(tmp_path / "plain.txt", against=corpus)
    assert any(each.where == f"{tmp_path / 'plain.txt'}:3" for each in report.findings)


def test_chinese_is_compared_by_characters(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("他说：“战国无双系列的正统第三续作发售。”\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("本作是战国无双系列的正统第三续作。\n", encoding="utf-8")
    report = check(tmp_path / "test.txt", against=tmp_path / "corpus.txt")
    assert any("1 of 1 text (100.0%)" in each.cause for each in report.findings)


def test_overlap_after_characters_that_become_longer_in_lower_case() -> None:
    shared = "the quick brown fox jumps over the lazy dog and then sleeps soundly"
    (found,), _ = overlapping([shared], Corpus.of([f"İzmir, İstanbul.\n{shared} all day"]))
    assert (found.where, found.words) == ("the list:2", shared)
