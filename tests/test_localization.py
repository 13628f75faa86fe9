"""Sentences in the user's language."""

import json

import pytest

from keel.cli import main
from keel.cli.message_catalogue import is_sentence, sentences, untranslated
from keel.data.language_detection import HAN
from keel.errors import UsageError
from keel.localization import CATALOGUES, Catalogue, language, read_catalogue, translate, using_language
from keel.text_table import cell_len, wrapped_text

ENTRIES = {
    "{1}: {2} rows are empty: drop them": "{1}：{2} 行为空：删掉它们",
    "{1}: there is no column {2}": "{1}：没有列 {2}",
    "{1#} of {2#} labels are {3?}": "{3}：{2} 个标签中的 {1} 个",
    "{1#} {2}": "{1} 个 {2}",
    "{1} is {2}{3}: choose another": "{1} 是 {2}{3}：另选一个",
    "; at most {1}": "；至多 {1}",
    "a vector file": "向量文件",
    "unusual": "不常见",
    "{1} step": "{1} 步",
    "{1} steps": "{1} 步",
    "trained for {1}": "训练了 {1}",
}


@pytest.fixture
def chinese() -> Catalogue:
    return Catalogue("zh", ENTRIES)


@pytest.mark.parametrize(
    ("english", "expected"),
    [
        ("train.tsv: 3 rows are empty: drop them", "train.tsv：3 行为空：删掉它们"),
        ("3 of 20 labels are unusual", "不常见：20 个标签中的 3 个"),  # values in another order, one a sentence itself
        ("trained for 2,000 steps", "训练了 2,000 步"),
        ("  trained for 1 step\n", "  训练了 1 步\n"),
        ("trained for 1 step\na.tsv: there is no column text", "训练了 1 步\na.tsv：没有列 text"),
        ("a.tsv: there is no column 'unusual'", "a.tsv：没有列 'unusual'"),  # quoted data stays
        ("a.tsv: there is no column unusual", "a.tsv：没有列 unusual"),  # a name may be a word of Keel
        ("x is a vector file; at most 3: choose another", "x 是 向量文件；至多 3：另选一个"),  # two values side by side
        ("'a, b': trained for 2 steps", "'a, b': 训练了 2 步"),
        ("nothing like this", "nothing like this"),
        ("", ""),
    ],
)
def test_sentence_is_translated_by_its_template(chinese: Catalogue, english: str, expected: str):
    assert chinese.translate(english) == expected


def test_the_template_with_most_words_of_its_own_is_meant():
    found = Catalogue("zh", {"{1} labels": "短", "{1} of {2} labels": "长 {1} {2}"})
    assert found.translate("3 of 4 labels") == "长 3 4"


def test_names_that_are_joined_are_a_chinese_list(chinese: Catalogue):
    assert chinese.translate("train, dev and test") == "train、dev 和 test"


def test_catalogue_has_every_sentence_of_the_source():
    """`python -m keel.cli.message_catalogue` adds new sentences; their translations are written by hand."""
    known, found = read_catalogue(CATALOGUES / "zh.po"), sentences()
    assert not (missing := untranslated(known, found)), f"{len(missing)} without a translation: {missing[:5]}"
    assert not (gone := known.keys() - found.keys()), f"no longer in the source: {sorted(gone)[:5]}"


def test_new_sentence_would_be_missed():
    assert is_sentence("there is no file {1}")
    assert untranslated({"a {1} b": "甲乙", "c d": ""}, ["a {1} b", "c d", "e f"]) == ["a {1} b", "c d", "e f"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "zh_TW"}, "zh"),
        ({"LANG": "zh_CN", "KEEL_LANG": "en"}, "en"),
        ({"LANG": "de_DE"}, "en"),
        ({}, "en"),
    ],
)
def test_language_is_that_of_the_locale(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str):
    for name in ("KEEL_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert language() == expected


def test_unknown_language_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(UsageError), using_language("fr"):
        pass
    assert main(["--lang", "fr", "info"]) == 2
    assert main(["info", "--lang"]) == 2
    assert "en or zh" in capsys.readouterr().err


def test_help_is_chinese_and_fits_the_terminal(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main(["finetune", "--help", "--lang", "zh"])
    shown = capsys.readouterr().out
    assert "--layer-decay" in shown
    lines = [line for line in shown.splitlines() if HAN.search(line)]
    assert len(lines) > 50
    assert max(map(cell_len, lines)) <= 110


def test_error_is_chinese_and_its_exit_code_the_same(capsys: pytest.CaptureFixture[str]):
    assert main(["--lang=zh", "predict", "nowhere", "x.tsv"]) == main(["predict", "nowhere", "x.tsv"])
    chinese, english = capsys.readouterr().err.splitlines()
    assert HAN.search(chinese)
    assert not HAN.search(english)
    assert "x.tsv" in chinese


def test_json_is_not_translated(capsys: pytest.CaptureFixture[str]):
    main(["info", "--json", "--lang", "zh"])
    assert "bundled models" in json.loads(capsys.readouterr().out)


def test_language_ends_with_the_command():
    main(["info", "--lang", "zh", "--json"])
    assert translate("there is no file a.tsv: check the name and the current folder").isascii()


def test_chinese_text_is_wrapped_by_columns():
    lines = wrapped_text("学习率在预热之后下降，见 --train.schedule；默认值随优化器而变。", 20)
    assert max(map(cell_len, lines)) <= 20 + 2  # punctuation hangs
    assert not any(line[0] in "，。；" for line in lines)
    assert "".join(lines).replace(" ", "") == "学习率在预热之后下降，见--train.schedule；默认值随优化器而变。"
