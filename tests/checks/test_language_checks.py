"""Checks of text in several languages."""

from pathlib import Path
from typing import Any

import pytest

from keel.checks import check
from keel.cli import main
from keel.data.corpus import Corpus
from keel.data.language_mix import repeats_per_epoch, smoothed_shares
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.model import Model
from keel.systems.bert import Bert

GERMAN = "\n\n".join(f"Der Bauer {number} wohnt im Tal. Er sieht das Feld und die Kühe." for number in range(40))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, english_corpus: Path, chinese_corpus: Path) -> dict[str, Path]:
    german = tmp_path_factory.mktemp("languages") / "german.txt"
    german.write_text(GERMAN, encoding="utf-8")
    return {"en": english_corpus, "de": german, "zh": chinese_corpus}


def test_the_mix_is_that_of_pretraining(files: dict[str, Path]) -> None:
    report = check([Path(f"{language}:{path}") for language, path in files.items()], language_smoothing=0.5)
    assert list(report.files) == list(map(str, files.values()))
    sizes = [path.stat().st_size for path in files.values()]
    rows = report.languages
    assert [row.language for row in rows] == list(files)
    assert [row.share for row in rows] == pytest.approx([size / sum(sizes) for size in sizes], rel=0.02)
    assert [row.sampled for row in rows] == pytest.approx(smoothed_shares(sizes, 0.5), rel=0.02)
    assert [row.repeats for row in rows] == pytest.approx(repeats_per_epoch(sizes, 0.5), rel=0.03)
    assert all(row.fertility is None for row in rows)
    assert report.to_dict()["languages"][1]["language"] == "de"
    assert any(line.startswith("de ") and f"{rows[1].repeats:.2f}" in line for line in report.lines())
    assert ">de<" in report._repr_html_()


def test_tokens_per_word_are_those_of_a_model_or_of_a_vocabulary(files: dict[str, Path]) -> None:
    tokenizer = Tokenizer.train(Corpus(files["en"]), size=400)
    system = Bert(layers=1, width=64, max_positions=32, sequence_length=32)
    model = Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)
    english, german, chinese = check(files, model=model).languages
    assert english.fertility is not None
    assert german.fertility is not None
    assert 1 <= english.fertility < german.fertility
    assert chinese.unit == "character"
    assert (chinese.unknown or 0) > 0.5
    shared = {row.language: row for row in check(files, vocabulary=900).languages}
    assert (shared["de"].fertility or 9) < german.fertility
    assert shared["zh"].unknown == 0
    assert shared["zh"].fertility == pytest.approx(1, abs=0.05)


def test_unknown_characters_many_repeats_and_a_wrong_language_are_reported(files: dict[str, Path]) -> None:
    report = check({"en": files["zh"], "de": ["Er sieht das Feld und die Kühe."] * 3}, language_smoothing=0)
    found = [str(each) for each in report.findings if each.severity == "warning"]
    assert any("looks like Chinese, and is named en" in each for each in found)
    assert any("times in an epoch" in each and " de " in each for each in found)
    tokenizer = Tokenizer.train(Corpus(files["en"]), size=400)
    system = Bert(layers=1, width=64, max_positions=32, sequence_length=32)
    model = Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)
    assert any("tokens are unknown" in each.cause and each.where == "zh" for each in check(files, model=model).findings)


def test_bad_input(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for settings, message in (
        ({"vocabulary": 500}, "name them, as in de:FILE en:FILE"),
        ({"vocabulary": 500, "model": "chinese"}, "leave out one of them"),
    ):
        given: dict[str, Any] = settings
        with pytest.raises(UsageError, match=message):
            check(files["en"], **given)
    assert main(["check", f"en:{files['en']}", str(files["de"])]) == 2
    assert "has no language before it" in capsys.readouterr().err
    assert main(["check", f"en:{files['en']}", "de:missing.txt"]) == 1


def test_labelled_files_may_have_a_language(tmp_path: Path) -> None:
    rows = ["text\tlabel", *(f"der Bauer {number}\t{('gut', 'schlecht')[number % 2]}" for number in range(20))]
    (tmp_path / "de.tsv").write_text("\n".join(rows), encoding="utf-8")
    report = check([Path(f"de:{tmp_path / 'de.tsv'}")])
    assert report.files[str(tmp_path / "de.tsv")]["contents"] == "20 texts"
    assert not report.languages
