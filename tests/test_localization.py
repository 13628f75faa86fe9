"""Sentences in the user's language."""

import ast
import json
import re
from contextlib import suppress

import pytest

from keel.cli import declared_commands, main
from keel.cli.message_catalogue import file_sentences, is_sentence, sentences, untranslated
from keel.data.language_detection import HAN
from keel.errors import UsageError
from keel.localization import (
    CATALOGUES,
    Catalogue,
    Verbatim,
    english_words,
    language,
    read_catalogue,
    translate,
    using_language,
    with_values,
)
from keel.text_table import cell_len, wrapped_text

ENGLISH_RUN = re.compile(r"(?:\b[a-z]{2,} ){2,}[a-z]{2,}\b")
"""Three English words in a row."""
KEPT_WORDS = re.compile(r"keel [a-z]+|--[\w.-]+ [a-z0-9|]+|utf-8|cp1252|finetune|check")
"""Commands, values of flags and names, which are not translated."""

ENTRIES = {
    "{1}: {2} rows are empty: drop them": "{1}：{2} 行为空：删掉它们",
    "{1}: there is no column {2}": "{1}：没有列 {2}",
    "{1#} of {2#} labels are {3?}": "{3}：{2} 个标签中的 {1} 个",
    "{1#} {2}": "{1} 个 {2}",
    "{1} is {2}{3}: choose another": "{1} 是 {2}{3}：另选一个",
    "; at most {1}": "；至多 {1}",
    "a vector file": "向量文件",
    "is a vector file": "是向量文件",
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
        ("x is a vector file; at most 3: choose another", "x 是向量文件；至多 3：另选一个"),  # two values side by side
        ("'a, b': trained for 2 steps", "'a, b'：训练了 2 步"),
        ("a.tsv is a vector file", "a.tsv 是向量文件"),
        ("trained for 2 steps  a.tsv: there is no column text", "训练了 2 步          a.tsv：没有列 text"),  # cells
        ("Trained for 2 steps.", "Trained for 2 steps."),
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
    shown = chinese.translate("trained for 1 step: --dev and --test")
    assert shown == "训练了 1 步：--dev 和 --test"
    assert chinese.translate("a.tsv: there is no column train, dev and test") == "a.tsv：没有列 train、dev 和 test"


@pytest.mark.parametrize(
    "text", ["bread and butter", "eggs, milk and bread", "my first step", "use your head", "a, b, c"]
)
def test_text_of_a_user_is_no_sentence_of_keel(text: str):
    assert translate(Verbatim(f"trained: {text}"), "zh") == f"trained: {text}"
    assert translate(f"there is no file {text!r}: check the name and the current folder", "zh").count(text) == 1


def test_long_list_of_names_is_translated_around_it(chinese: Catalogue):
    names = ", ".join(f"column {number}" for number in range(400))
    assert chinese.translate(f"a.tsv: there is no column {names}") == f"a.tsv：没有列 {names}"
    assert chinese.translate("a: " * 5000) == "a: " * 5000


def test_of_two_readings_the_one_with_fewer_english_words_is_meant():
    found = Catalogue("zh", {"{1} has {2}": "{1} 有 {2}", "the row has {1} and is cut": "该行有 {1}，已截断"})
    assert found.translate("a.tsv: the row has 3 and is cut") == "a.tsv：该行有 3，已截断"


@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        ("是 {1}。", {"1": "模型"}, "是模型。"),
        ("去掉{1}，再试", {"1": "--lr"}, "去掉 --lr，再试"),
        ("{1}损失", {"1": "MLM"}, "MLM 损失"),
        ("{1} {2}", {"1": "a.tsv", "2": "（已读）"}, "a.tsv （已读）"),
    ],
)
def test_values_are_spaced_as_chinese_and_latin_text(template: str, values: dict[str, str], expected: str):
    assert with_values(template, values, values.keys()) == expected
    assert with_values("没有文件 {1} 或", {"1": "数据"}, ()) == "没有文件 数据 或"  # a name keeps its spaces


def test_catalogue_has_every_sentence_of_the_source():
    """`python -m keel.cli.message_catalogue` adds new sentences; their translations are written by hand."""
    known, found = read_catalogue(CATALOGUES / "zh.po"), sentences()
    assert not (missing := untranslated(known, found)), f"{len(missing)} without a translation: {missing[:5]}"
    assert not (gone := known.keys() - found.keys()), f"no longer in the source: {sorted(gone)[:5]}"


@pytest.mark.parametrize("text", ["{1} is {2}", "{1}: {2}", "a number", "{:,} or more", "--lr {1}"])
def test_extraction_of_short_texts(text: str):
    """Two words are a sentence, one of them an article too; a template needs a word that is no function word."""
    tree = ast.parse(f"raise KeelError({text!r})")
    assert [found for found, _ in file_sentences(tree)] == {
        "a number": ["a number"],
        "{:,} or more": ["{1} or more"],
        "--lr {1}": ["--lr {1}"],
    }.get(text, [])


@pytest.mark.parametrize("verb", ["", *declared_commands()])
def test_help_has_no_english_sentence(capsys: pytest.CaptureFixture[str], verb: str):
    """Templates are all translated, but a sentence may be joined from parts in a way that none of them matches."""
    with suppress(SystemExit):
        main([*verb.split(), "--help", "--lang", "zh"])
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("  keel ")]
    assert not [line for line in lines if ENGLISH_RUN.search(line)]


@pytest.mark.parametrize(
    "sentence",
    [
        "c.txt:7: this text is not valid utf-8 but probably cp1252: use --encoding cp1252",
        "t.tsv: text in 'sentence', label in 'label'",
        "t.csv: the columns of two texts are ambiguous: it has 'a'; name them with --text-column and --second-column",
        "item 2 of the list: 14 duplicate examples (for example, of item 0 of the list): drop the copies with --clean "
        "(finetune) or --fix (check)",
        "accuracy 0.667 (0.000 to 1.000), binary F1 0.800 (0.000 to 1.000) on 3 examples",
        "validation loss (n-gram): 6.004 -> 1.064",
        "--steps must be a whole number, not 'many' (Number of optimizer steps)",
        "--width: keel pretrain has no such flag; use --system.width",
        "words.txt is empty: give a file of word vectors",
        "the text looks like English: subwords (WordPiece), lowercased; change with --text.tokenizer words",
    ],
)
def test_sentences_that_are_joined_at_run_time_have_no_english_words_left(sentence: str):
    shown = translate(sentence, "zh")
    assert english_words(shown) <= english_words(" ".join(KEPT_WORDS.findall(sentence))), shown


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


def test_numbers_with_exponents_are_values():
    found = Catalogue("zh", {"min {1#}, max {2#}": "最小 {1}，最大 {2}"})
    assert found.translate("min 1.28e-08, max 1") == "最小 1.28e-08，最大 1"


def test_a_sentence_of_joined_parts_ends_with_a_chinese_full_stop(chinese: Catalogue):
    assert chinese.translate("x.tsv: trained for 2 steps; width 384.").endswith("384。")


@pytest.mark.parametrize(
    ("english", "expected"),
    [
        ("Decided: 1 of 3 pairs; not decided: 2.", "3 对中已确定 1 对，未定 2 对。"),
        ("a: bert is best (0.9). Not decided: 1 of 3 pairs.", "3 对中有 1 对未定。"),
        ("[MASK] at 8", "第 8 位的 [MASK]"),
        ("system", "系统"),
        ("verdict", "结论"),
        ("detectable", "可检出差异"),
    ],
)
def test_sentences_and_heads_of_reports(english: str, expected: str):
    assert translate(english, "zh").endswith(expected)
