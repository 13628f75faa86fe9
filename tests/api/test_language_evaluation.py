"""Fine-tuning and evaluation on files of several languages."""

import json
import lzma
import random
from pathlib import Path
from typing import Any

import pytest

import keel
from keel.cli import main
from keel.data.examples import Examples
from keel.data.label_kinds import Regression
from keel.errors import KeelError, UsageError
from keel.model import Model

WORDS = {
    "en": ("the baker saw", "Paris", "and", "Anna", "good", "bad"),
    "de": ("der Bäcker sah", "Berlin", "und", "Otto", "gut", "schlecht"),
    "zh": ("面 包 师 看 见", "北 京", "和", "安 娜", "好", "坏"),
}
TAGS = ("O", "LOC", "O", "PER", "O", "O")
TINY: dict[str, Any] = {"steps": 2, "batch": 8, "threads": 1, "device": "cpu", "progress": False}


def tagged(language: str, count: int) -> str:
    """Sentences in the form of WikiAnn: a word, a tab and its tag per line, a blank line between sentences."""
    rng, sentences = random.Random(0), []
    for _ in range(count):
        lines: list[str] = []
        for phrase, tag in rng.sample(list(zip(WORDS[language], TAGS, strict=True)), 3):
            words = phrase.split()
            prefixes = ["O"] * len(words) if tag == "O" else ["B-" + tag, *["I-" + tag] * (len(words) - 1)]
            lines += map("\t".join, zip(words, prefixes, strict=True))
        sentences.append("\n".join(lines) + "\n\n")
    return "".join(sentences)


@pytest.fixture(scope="module")
def wikiann(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files named and compressed as published: dev-en.tsv.xz."""
    folder = tmp_path_factory.mktemp("wikiann")
    for language in WORDS:
        with lzma.open(folder / f"dev-{language}.tsv.xz", "wt", encoding="utf-8") as file:
            file.write(tagged(language, 40))
    return {language: folder / f"dev-{language}.tsv.xz" for language in WORDS}


@pytest.fixture(scope="module")
def xnli(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Json lines with premise, hypothesis and label, as XNLI has them."""
    folder = tmp_path_factory.mktemp("xnli")
    for language, (first, *_, good, bad) in WORDS.items():
        rows = [{"premise": f"{first} {number}", "hypothesis": (good, bad)[number % 2],
                 "label": ("entailment", "neutral", "contradiction")[number % 3]} for number in range(30)]  # fmt: skip
        with lzma.open(folder / f"{language}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return {language: folder / f"{language}.jsonl.xz" for language in WORDS}


@pytest.fixture(scope="module")
def tagger(wikiann: dict[str, Path]) -> Model:
    system = keel.Transformer(layers=1, width=32, head_dim=16)
    return keel.finetune(system, wikiann["en"], task="tag", dev=None, **TINY)


@pytest.fixture(scope="module")
def pairs(xnli: dict[str, Path]) -> Model:
    system = keel.Transformer(layers=1, width=32, head_dim=16)
    return keel.finetune(system, xnli["en"], task="pair", dev=None, **TINY)


def test_tags_of_each_language_are_scored_as_alone(tagger: Model, wikiann: dict[str, Path]) -> None:
    scores = keel.evaluate(tagger, wikiann)
    assert scores.sliced_by == "language"
    assert [(each.name, each.count) for each in scores.slices] == [(language, 40) for language in wikiann]
    assert scores.count == 120
    values = []
    for each in scores.slices:
        alone = keel.evaluate(tagger, wikiann[each.name])
        assert each.values["entity_f1"].value == alone.main_value
        values.append(alone.main_value)
    assert scores.note == f"mean of 3 languages: entity F1 {sum(values) / 3:.3f}"


def test_pairs_of_each_language_are_scored_as_alone(pairs: Model, xnli: dict[str, Path]) -> None:
    scores = keel.evaluate(pairs, [Path(f"{language}:{path}") for language, path in xnli.items()])
    assert [each.name for each in scores.slices] == ["en", "de", "zh"]
    for each in scores.slices:
        assert each.values["accuracy"] == keel.evaluate(pairs, xnli[each.name]).values["accuracy"]


def test_a_language_column_is_a_slice(pairs: Model, tmp_path: Path) -> None:
    rows = [f"{('de', 'fr')[number % 2]}\ta {number}\tb\tneutral" for number in range(9)] + ["fr\tc\td\tentailment"]
    header = "language\tsentence1\tsentence2\tgold_label"
    (tmp_path / "xnli.dev.tsv").write_text("\n".join([header, *rows]), encoding="utf-8")
    scores = keel.evaluate(pairs, tmp_path / "xnli.dev.tsv", slice="language")
    assert [(each.name, each.count) for each in scores.slices] == [("de", 5), ("fr", 5)]


def test_a_model_is_trained_on_all_languages_and_tested_on_each(wikiann: dict[str, Path]) -> None:
    system = keel.Transformer(layers=1, width=32, head_dim=16)
    some = {language: wikiann[language] for language in ("en", "de")}
    model = keel.finetune(system, some, task="tag", dev="20%", test=wikiann, seeds=2, **TINY)
    assert model.card.text.endswith(" examples of dev-en.tsv.xz and 1 more language")
    assert [each["name"] for each in model.card.scores["test"]["slices"]] == ["en", "de", "zh"]


def test_the_command_line_prints_a_row_for_each_language(
    tagger: Model, wikiann: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tagger.save(tmp_path / "tagger")
    files = [f"{language}:{path}" for language, path in wikiann.items()]
    assert main(["evaluate", str(tmp_path / "tagger"), *files, "--out", str(tmp_path / "scores")]) == 0
    out = capsys.readouterr().out.splitlines()
    start = out.index("by language")
    assert [line.split()[0] for line in out[start + 2 : start + 5]] == ["en", "de", "zh"]
    table = (tmp_path / "scores" / "slices.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in table] == ["language", "en", "de", "zh"]
    assert main(["evaluate", str(tmp_path / "tagger"), *files, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["slices"]) == 3
    train = [
        "finetune",
        "transformer",
        files[0],
        "--task",
        "tag",
        "--steps",
        "2",
        "--system.layers",
        "1",
        "--dev",
        "none",
    ]
    shape = ["--system.width", "64", "--out", str(tmp_path / "new"), "--test", ",".join(files[1:]), "--quiet", "--json"]
    assert main([*train, *shape]) == 0
    tested = json.loads(capsys.readouterr().out)["scores"]["test"]
    assert [each["name"] for each in tested["slices"]] == ["de", "zh"]


def test_bad_input(
    tagger: Model, pairs: Model, wikiann: dict[str, Path], xnli: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="has no language before it"):
        keel.evaluate(tagger, [Path(f"en:{wikiann['en']}"), wikiann["de"]])
    with pytest.raises(UsageError, match="is a second file of 'en'"):
        keel.evaluate(tagger, [Path(f"en:{wikiann['en']}"), Path(f"en:{wikiann['de']}")])
    with pytest.raises(KeelError, match="there is no file missing"):
        keel.evaluate(tagger, {"en": wikiann["en"], "de": "missing.tsv"})
    with pytest.raises(UsageError, match="the slices are languages"):
        keel.evaluate(pairs, xnli, slice="genre")
    bare = keel.pretrain(
        "word2vec", ["a b c d e"] * 9, out=tmp_path / "words", steps=1, width=4, progress=False, min_count=1
    )
    with pytest.raises(UsageError, match="one file at a time"):
        keel.evaluate(bare, xnli)


def test_examples_of_other_kinds_are_not_joined() -> None:
    common: dict[str, Any] = {"locations": ["x:1"], "source": "x"}
    first = Examples(texts=["a"], values=[0.5], kind=Regression(), **common)
    with pytest.raises(KeelError, match="other labels or texts"):
        Examples.join({"en": first, "de": Examples(texts=["b"], values=[None], kind=None, **common)})
