"""Labelled files and lists in all their forms: the right texts and labels, and one sentence where it cannot be."""

import gzip
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest

from keel.data.answer_files import read_answers
from keel.data.examples import Columns, Examples, read_examples, skip_unlabelled
from keel.data.label_kinds import Regression, SingleLabel
from keel.data.memory_sources import plain_source
from keel.data.table_sources import load_table
from keel.data.table_writing import write_table
from keel.data.tables import fill_missing
from keel.errors import KeelError, UsageError
from keel.events import Event, ignore


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_text(text, encoding=encoding, newline="")
    return path


def plain(examples: Examples) -> list[tuple[Any, ...]]:
    return [(e.text, e.label) if e.second is None else (e.text, e.second, e.label) for e in examples]


def notes(source: Any, **settings: Any) -> list[str]:
    events: list[dict[str, Any]] = []
    read_examples(source, on_event=events.append, **settings)
    return [event["text"] for event in events]


SINGLE = [("so good", "1"), ("so bad", "0"), ("fine", "1")]
SINGLE_FORMS = {
    "sst2.tsv": "sentence\tlabel\nso good\t1\nso bad\t0\nfine\t1\n",
    "windows.tsv": "\ufeffsentence\tlabel\r\nso good\t1\r\nso bad\t0\r\nfine\t1\r\n",
    "chinese.tsv": "label\ttext_a\n1\tso good\n0\tso bad\n1\tfine\n",
    "cola.tsv": "gj04\t1\t\tso good\ncj99\t0\t?*\tso bad\ncj99\t1\t\tfine\n",
    "quoted.csv": 'id,review,sentiment\n1,"so good",1\n2,so bad,0\n3,fine,1\n',
    "other.csv": "headline,topic\nso good,1\nso bad,0\nfine,1\n",
    "bare.tsv": "so good\t1\nso bad\t0\nfine\t1\nfine\t1\n",
    "rows.jsonl": '{"text": "so good", "label": 1}\n\n{"text": "so bad", "label": 0}\n{"label": 1, "text": "fine"}\n',
    "fast.txt": "__label__1 so good\n__label__0 so bad\n__label__1 fine\n",
}


@pytest.mark.parametrize("name", SINGLE_FORMS)
def test_one_text_in_every_published_form(tmp_path: Path, name: str) -> None:
    columns = Columns(text_column="headline", label_column="topic") if name == "other.csv" else Columns()
    found = read_examples(write(tmp_path, name, SINGLE_FORMS[name]), pair=False, columns=columns)
    assert plain(found)[:3] == SINGLE
    assert found.kind == SingleLabel()
    assert found.names == ("0", "1")


PAIR_FORMS = {
    "mrpc.tsv": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t" a\tb\n0\t9\t10\tc\td\n',
    "rte.tsv": 'index\tsentence1\tsentence2\tlabel\n0\t" a\tb\t1\n1\tc\td\t0\n',
    "qnli.tsv": 'index\tquestion\tsentence\tlabel\n0\t" a\tb\t1\n1\tc\td\t0\n',
    "nli.jsonl": '{"premise": "\\" a", "hypothesis": "b", "label": 1}\n{"premise": "c", "hypothesis": "d", "label": 0}',
}


@pytest.mark.parametrize("name", PAIR_FORMS)
def test_pairs_in_every_published_form(tmp_path: Path, name: str) -> None:
    found = read_examples(write(tmp_path, name, PAIR_FORMS[name]), pair=True)
    assert plain(found) == [('" a', "b", "1"), ("c", "d", "0")]


def test_scores_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "sts.tsv", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t5.000\n1\tc\td\t3.800\n")
    assert plain(read_examples(path, pair=True)) == [("a", "b", 5.0), ("c", "d", 3.8)]
    chinese = write(tmp_path, "sts.txt", "2012-1||一||二||5\n2012-2||三||四||0\n")
    found = read_examples(chinese, pair=True)
    assert found.kind == Regression()
    assert plain(found) == [("一", "二", 5.0), ("三", "四", 0.0)]


def test_python_objects_are_read_like_files() -> None:
    frame = pandas.DataFrame({"review": ["so good", "so bad", "fine"], "label": [1, 0, 1]})
    rows = [{"text": text, "label": label} for text, label in SINGLE]
    for source in (SINGLE, list(map(list, SINGLE)), frame, rows):
        assert plain(read_examples(source, pair=False)) == SINGLE
    assert plain(read_examples(["a", "b"], pair=False)) == [("a", None), ("b", None)]
    assert plain(read_examples(pandas.Series(["a", "b"]), pair=False)) == [("a", None), ("b", None)]
    for pairs in ([(("a", "b"), "x")], [("a", "b", "x")]):
        assert plain(read_examples(pairs, pair=True)) == [("a", "b", "x")]
    assert plain(read_examples([("a", "b")], pair=True)) == [("a", "b", None)]


MISSING_VALUES = {
    "object": pandas.DataFrame({"text": ["a", None, "c", float("nan")], "label": ["1", "0", None, "1"]}, dtype=object),
    "string": pandas.DataFrame({"text": ["a", None, "c", None], "label": ["1", "0", None, "1"]}, dtype="string"),
    "categories": pandas.DataFrame({
        "text": ["a", "", "c", ""], "label": pandas.Categorical(["1", "0", None, "1"], categories=["0", "1", "2"])
    }),
    "nullable integers": pandas.DataFrame(
        {"text": ["a", "", "c", ""], "label": pandas.array([1, 0, None, 1], dtype="Int64")}, index=[3, 5, 7, 9]
    ),
    "integers as floats": pandas.DataFrame({"text": ["a", "", "c", ""], "label": [1, 0, None, 1]}),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISSING_VALUES)
def test_data_frames_with_missing_values_are_read_like_files(tmp_path: Path, kind: str) -> None:
    frame = MISSING_VALUES[kind]
    found = read_examples(frame, pair=False)
    assert plain(found) == [("a", "1"), ("", "0"), ("c", None), ("", "1")]
    assert found.names == ("0", "1")
    assert found.kind == SingleLabel()
    if kind in ("object", "string"):
        assert any(text.startswith("row 1: 2 texts are missing") for text in notes(frame, pair=False))
    assert len(skip_unlabelled(found)) == 3
    write_table(tmp_path / "a.csv", list(frame.columns), frame.to_numpy().tolist())
    write_table(tmp_path / "a.jsonl", list(frame.columns), frame.to_numpy().tolist())
    for name in ("a.csv", "a.jsonl"):
        assert read_examples(tmp_path / name, pair=False).texts == found.texts
    assert "NaN" not in (tmp_path / "a.jsonl").read_text()


def test_several_labels(tmp_path: Path) -> None:
    fast = write(tmp_path, "several.txt", "__label__a __label__b one two\n__label__b three\n")
    assert plain(read_examples(fast, pair=False)) == [("one two", ("a", "b")), ("three", ("b",))]
    assert plain(read_examples([("one", ["b", "a"]), ("two", [])], pair=False)) == [("one", ("a", "b")), ("two", ())]
    table = write(tmp_path, "several.csv", 'text,labels\none,"a,b"\ntwo,b\n')
    assert plain(read_examples(table, pair=False, columns=Columns(labels="multi"))) == [
        ("one", ("a", "b")),
        ("two", ("b",)),
    ]


def test_compressed_parquet_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "sst2.tsv.gz"
    packed.write_bytes(gzip.compress(SINGLE_FORMS["sst2.tsv"].encode()))
    parquet = tmp_path / "sst2.parquet"
    pandas.DataFrame(SINGLE, columns=["sentence", "label"]).to_parquet(parquet)
    assert plain(read_examples(packed, pair=False)) == plain(read_examples(parquet, pair=False)) == SINGLE
    for form in ("sst2.tsv", "rows.jsonl", "fast.txt"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SINGLE_FORMS[form].encode())))
        assert plain(read_examples("-", pair=False)) == SINGLE


def test_gb18030_is_found_out(tmp_path: Path) -> None:
    rows = "".join(f"{number % 2}\t这家酒店的早餐很不错，房间也很干净\n" for number in range(20))
    path = write(tmp_path, "gb.tsv", "label\ttext_a\n" + rows, "gb18030")
    assert read_examples(path, pair=False)[0].text == "这家酒店的早餐很不错，房间也很干净"


def test_locations_are_lines_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'text,label\n"two\nlines",x\nnext,y\n')
    assert [example.location for example in read_examples(path, pair=False)] == [f"{path}:2", f"{path}:4"]


def test_the_chosen_columns_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path, "rte.tsv", PAIR_FORMS["rte.tsv"])
    assert notes(path, pair=True) == [f"{path}: text in 'sentence1', second text in 'sentence2', label in 'label'"]
    (messages,) = notes(path, pair=False)
    assert "'sentence2' is ignored (task='pair'" in messages
    cola = write(tmp_path, "cola.tsv", SINGLE_FORMS["cola.tsv"])
    assert notes(cola, pair=False) == [f"{cola}: text in column 4, label in column 2"]


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "text,summary,label,stars\nx,y,a,5\nz,w,b,1\n")
    stars = Columns(text_column="summary", label_column="stars")
    assert plain(read_examples(path, pair=False, columns=stars)) == [("y", "5"), ("w", "1")]
    both = Columns(text_column="summary", second_column="text")
    assert plain(read_examples(path, pair=True, columns=both)) == [("y", "x", "a"), ("w", "z", "b")]
    bare = write(tmp_path, "bare.tsv", "1\t2\tx y\n3\t4\tz\n")
    numbers = Columns(text_column="3", label_column="1")
    assert plain(read_examples(bare, pair=False, columns=numbers)) == [("x y", "1"), ("z", "3")]


def test_labels_that_look_like_floats_are_classes_by_default() -> None:
    pairs = [("a", "1.0"), ("b", "2.0"), ("c", "1.0")]
    (messages,) = notes(pairs, pair=False)
    assert "2 classes (1.0, 2.0)" in messages
    assert "labels='regression'" in messages
    assert read_examples(pairs, pair=False).names == ("1.0", "2.0")
    assert plain(read_examples(pairs, pair=False, columns=Columns(labels="regression")))[1] == ("b", 2.0)
    assert read_examples([("a", 0.25), ("b", 1.0)], pair=False).kind == Regression()


@pytest.mark.parametrize(
    ("name", "text", "columns", "message"),
    [
        (
            "a.tsv",
            "sentence\tlabel\nx\t1\n",
            {"label_column": "stars"},
            "no column 'stars': it has 'sentence', 'label'",
        ),
        (
            "a.tsv",
            "one\ttwo\tthree\tlabel\nx\ty\tz\t1\n",
            {},
            "'three', 'label'; name them with text_column",
        ),
        ("a.tsv", "sentence\tlabel\nx\t1\ny\n", {}, ":3: this row has 1 column,"),
        ("a.csv", "text,label\na,x\nb,y,z\n", {}, ":3: this row has 3 columns,"),
        ("a.csv", 'text,label\na,x\n"b,y\nc,z\n', {}, ":3: a quote in this row is not closed"),
        ("a.json", '[\n{"text": "a"},\n"b"]', {}, ":3: 'b' is not an object"),
        ("a.json", '[\n{"text": "a"}\n{"text": "b"}]', {}, ":3: this is not JSON"),
        ("a.json", '[\n{"text": "a"}\n]\n[{"text": "b"}]\n', {}, ":4: this is not JSON"),
        ("a.json", '[{"text": "a", "score": NaN}] oops', {}, ":1: this is not JSON"),
        ("a.tsv", "sentence\tlabel\n", {}, "has no examples"),
        ("a.tsv", "", {}, "has no examples"),
        ("a.tsv", "sentence\tlabel\nx\tgood\n", {"labels": "regression"}, ":2: the label 'good' is not a number"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": 3, "label": 2}\n', {}, ":2: the text is 3"),
        ("a.jsonl", '{"text": null, "label": 1}\n{"label": 2}\n', {}, ":1: the text is None"),
        ("a.jsonl", '{"text": "x", "labels": ["a", "b"]}\n', {"labels": "single"}, ":1: 2 labels where one"),
        ("a.txt", "__label__x y\nz\n", {}, ":2: this line does not start with __label__"),
    ],
)
def test_bad_files_get_one_sentence_with_the_place(
    tmp_path: Path, name: str, text: str, columns: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(KeelError) as caught:
        read_examples(path, pair=False, columns=Columns(**columns))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


@pytest.mark.parametrize("missing", ["", " ", "NaN", "nan", "<NA>", "#N/A"])
def test_rows_without_a_label_are_counted_and_skipped(tmp_path: Path, missing: str) -> None:
    path = write(tmp_path, "a.csv", f"text,label\na,x\nb,{missing}\nc,y\nd,{missing}\n")
    examples = read_examples(path, pair=False)
    assert examples.values == ["x", None, "y", None]  # predict needs no labels
    assert examples.names == ("x", "y")
    events: list[dict[str, Any]] = []
    assert plain(skip_unlabelled(examples, events.append)) == [("a", "x"), ("c", "y")]
    assert events[0]["text"].startswith(f"{path}:3: 2 rows have no label")
    unlabelled = read_examples([("a", None), ("b", missing)], pair=False)
    assert unlabelled.kind is None
    assert skip_unlabelled(unlabelled) is unlabelled


def test_nan_is_a_language_among_others(tmp_path: Path) -> None:
    codes = ["de", "fr", "yue", "be-tarask", "zho_Hans"]
    rows = "".join(f"a,{code}\n" for code in [*codes, "nan", "NaN", ""])
    assert read_examples(write(tmp_path, "a.csv", f"text,label\n{rows}"), pair=False).values == [
        *codes,
        "nan",
        None,
        None,
    ]
    few = [("a", "neg"), ("b", "pos"), ("c", "nan")]
    assert read_examples(few, pair=False).values == ["neg", "pos", None]
    assert read_examples([("a", code) for code in codes] + [("b", math.nan)], pair=False).values[-1] is None


def test_empty_cells_are_labels_of_multi_label_tables(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'text,labels\na,"x,y"\nb,\n')
    found = read_examples(path, pair=False, columns=Columns(labels="multi"))
    assert found.values == [("x", "y"), ()]


CSV_FORMS = {
    "semicolons": "id;sentence;label\n1;so good, really;1\n2;so bad;0\n3;fine, fine;1\n",
    "one comma in each row": "sentence;label\nso good, really;1\nso bad, too;0\nfine, fine;1\n",
    "no commas": "label;sentence\n1;so good\n0;so bad\n1;fine\n",
    "tabs": "\ufeffid\tsentence\tlabel\r\n1\tso good, really\t1\r\n2\tso bad\t0\r\n3\tfine\t1\r\n",
    "quoted": 'sentence;label\n"so good; really";1\n"so\nbad";0\nfine;1\n',
}


@pytest.mark.parametrize("form", CSV_FORMS)
def test_the_separator_of_a_csv_file_is_detected(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, "a.csv", CSV_FORMS[form])
    found = read_examples(path, pair=False)
    assert found.values == ["1", "0", "1"]
    assert found.texts[2].startswith("fine")
    assert f"{path}: columns are separated by {'tabs' if form == 'tabs' else repr(';')}" in notes(path, pair=False)[0]


@pytest.mark.parametrize(
    "text",
    [
        "text,label\na;b,x\nc;d,y\n",  # commas give a table
        "text\nDr; No\nMr; Yes\nMs; No\n",  # a column of texts
        "Dr; No\nMr; Yes\nMs; No\nSr; No\n",  # a column of texts without a header
        "text\na\nb\n",
    ],
)
def test_other_separators_need_a_table_with_known_columns(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, "a.csv", text)
    first = text.split("\n")[1].split(",")[0] if text.startswith("text") else "Dr; No"
    assert read_examples(path, pair=False).texts[0] == first
    assert not any("separated" in each for each in notes(path, pair=False))


QUESTIONS = "context\task\na red house\twho is here?\nthe green tree\twhy so?\na blue river\twhere is it?\n"


def test_unknown_names_above_texts_are_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", QUESTIONS)
    with pytest.raises(KeelError, match="columns of text are ambiguous: it has 'context', 'ask'; name them with"):
        read_examples(path, pair=False)
    with pytest.raises(KeelError, match="columns of two texts are ambiguous: it has 'context', 'ask'"):
        read_examples(path, pair=True)
    columns = Columns(text_column="ask", second_column="context")
    assert plain(read_examples(path, pair=True, columns=columns))[0][:2] == ("who is here?", "a red house")
    with pytest.raises(KeelError, match="no column of the question, such as 'question': name one of 'context', 'ask'"):
        read_answers(path)


@pytest.mark.parametrize(
    "text",
    [
        "Hi\tHallo\nHow\tWie\nGo on\tGeh weiter\n" + "We are here\tWir sind hier\n" * 40,  # sorted by length
        "wonderful\tpos\nnot so good\tneg\na good film\tpos\nso bad a film\tneg\n",  # a repeated label
        "Why?\tSo\nnot so good\tas it is\na good film\tas it was\nso bad a film\tit will be\n",
    ],
)
def test_a_first_row_of_words_is_not_always_a_header(tmp_path: Path, text: str) -> None:
    assert len(load_table(write(tmp_path, "a.tsv", text), Columns(), ignore, pair=True)) == text.count("\n")


def test_one_word_above_a_single_column_of_texts_is_a_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "Great\nso good\nso bad\nnot so bad\n")
    assert read_examples(path, pair=False).texts[0] == "Great"


def test_the_separator_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "Kommentar|Klasse\nso good|1\nso bad|0\n")
    columns = Columns(separator="|", text_column="Kommentar", label_column="Klasse")
    assert plain(read_examples(path, pair=False, columns=columns)) == [("so good", "1"), ("so bad", "0")]
    tabs = write(tmp_path, "b.csv", "so, good\t1\nso bad\t0\nfine\t1\n")
    assert plain(read_examples(tabs, pair=False, columns=Columns(separator="tab")))[0] == ("so, good", "1")
    named = write(tmp_path, "c.csv", "Kommentar;Klasse\nso good;1\nso bad;0\n")
    columns = Columns(text_column="Kommentar", label_column="Klasse")
    assert plain(read_examples(named, pair=False, columns=columns)) == [("so good", "1"), ("so bad", "0")]
    with pytest.raises(KeelError, match="separator must be one character"):
        Columns(separator=";;")


def test_json_arrays_are_read_with_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[\n {"text": "so good",\n  "label": 1},\n {"text": "so bad", "label": 0},{"text": "fine", "label": 1}\n]\n'
    found = read_examples(path := write(tmp_path, "a.json", text), pair=False)
    assert plain(found) == SINGLE
    assert [*found.locations] == [f"{path}:2", f"{path}:4", f"{path}:4"]
    assert plain(read_examples(write(tmp_path, "b.json", SINGLE_FORMS["rows.jsonl"]), pair=False)) == SINGLE
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert plain(read_examples("-", pair=False)) == SINGLE


def test_a_json_array_may_be_one_long_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keel.data.text_files.MAX_LINE", 50)
    monkeypatch.setattr("keel.data.table_files.MAX_LINE", 50)
    rows = [{"text": "so good", "label": 1}, {"text": "so bad", "label": 0}, {"text": "fine", "label": 1}]
    found = read_examples(path := write(tmp_path, "a.json", json.dumps(rows)), pair=False)  # as pandas writes it
    assert plain(found) == SINGLE
    assert [*found.locations] == [f"{path}:1", f"{path}:2", f"{path}:3"]
    long = write(tmp_path, "b.json", json.dumps([*rows, {"text": "x" * 51, "label": 1}]))
    with pytest.raises(KeelError, match=r"b\.json:1: this field has more than 50 characters"):
        read_examples(long, pair=False)


@pytest.mark.parametrize("text", ["caf\xe9\n" * 9, '{"text": "caf\xe9"}\n', "text\tlabel\ncaf\xe9\t1\n", "\xe9\n"])
def test_messages_about_standard_input_name_no_other_file(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode("cp1252"))))
    with pytest.raises(KeelError, match=r"^standard input"):
        read_examples("-", pair=False)


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "A.JSON"])
def test_nan_in_json_is_a_missing_value(tmp_path: Path, name: str) -> None:
    records = [{"text": "so good", "score": math.nan, "label": "x"}, {"text": math.nan, "label": math.nan}]
    lines = "\n".join(map(json.dumps, records))
    text = lines if name == "a.jsonl" else json.dumps(records)
    assert plain(read_examples(write(tmp_path, name, text), pair=False)) == [("so good", "x"), ("", None)]


def test_excel_tables_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    rows = [["id", "review", "label", None], [1, "so good", 1], [], [2, "so bad", 0], [3, "fine", 1.0, " "]]
    for row in rows:
        book.active.append(row)
    book.create_sheet("other")
    book.save(path := tmp_path / "a.xlsx")
    found = read_examples(path, pair=False)
    assert plain(found) == SINGLE
    assert [*found.locations] == [f"{path}:2", f"{path}:4", f"{path}:5"]
    assert any("'other'" in text for text in notes(path, pair=False))
    (tmp_path / "b.xlsx").write_bytes(path.read_bytes()[:2000])
    with pytest.raises(KeelError, match=r"b\.xlsx cannot be read as xlsx"):
        read_examples(tmp_path / "b.xlsx", pair=False)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(KeelError, match=r"pip install 'keel-nlp\[data\]'"):
        read_examples(path, pair=False)


def test_bad_sources_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(KeelError, match="is a folder"):
        read_examples(tmp_path, pair=False)
    with pytest.raises(KeelError, match="there is no file"):
        read_examples(tmp_path / "none.tsv", pair=False)
    single = write(tmp_path, "single.tsv", "sentence\tlabel\nx\t1\n")
    with pytest.raises(KeelError, match="columns of two texts"):
        read_examples(single, pair=True)
    with pytest.raises(KeelError, match=r"item 1 of the list is \('b',\)"):
        read_examples([("a", "x"), ("b",)], pair=False)
    with pytest.raises(KeelError, match="item 0 of the list: the text is 3"):
        read_examples([(3, "x")], pair=False)
    with pytest.raises(KeelError, match="item 1 of the list is 'b'"):
        read_examples([("a", "b"), "b"], pair=True)


PUBLISHED = {
    "glue/CoLA": (False, {"train.tsv.xz": 8551, "dev.tsv": 1043, "test.tsv": 1063}),
    "glue/SST-2": (False, {"train.tsv.xz": 67349, "dev.tsv": 872, "test.tsv.xz": 1821}),
    "glue/MRPC": (True, {"train.tsv.xz": 3668, "dev.tsv": 408, "test.tsv.xz": 1725}),
    "glue/RTE": (True, {"train.tsv.xz": 2490, "dev.tsv": 277, "test.tsv.xz": 3000}),
    "glue/QNLI": (True, {"dev.tsv.xz": 5463, "test.tsv.xz": 5463}),
    "glue/STS-B": (True, {"train.tsv.xz": 5749, "dev.tsv.xz": 1500, "test.tsv.xz": 1379}),
    "zh/chnsenticorp": (False, {"train.tsv.xz": 9600, "dev.tsv.xz": 1200, "test.tsv.xz": 1200}),
    "zh/sts_b_zh": (True, {"cnsd-sts-train.txt.xz": 5231, "cnsd-sts-dev.txt.xz": 1458, "cnsd-sts-test.txt.xz": 1361}),
}
NAMES = {"RTE": ("entailment", "not_entailment"), "QNLI": ("entailment", "not_entailment"), "STS-B": (), "sts_b_zh": ()}


@pytest.mark.data
@pytest.mark.parametrize("folder", PUBLISHED)
def test_published_files_are_read_as_they_are(data_dir: Path, folder: str) -> None:
    pair, files = PUBLISHED[folder]
    for name, count in files.items():
        found = read_examples(data_dir / "tasks" / folder / name, pair=pair)
        assert len(found) == count
        assert all(example.text for example in found)
        if folder.startswith("glue") and name.startswith("test"):
            assert found.kind is None
        else:
            task = Path(folder).name
            assert found.names == NAMES.get(task, ("0", "1"))
            assert found.kind == (SingleLabel() if found.names else Regression())
        if found.kind == Regression():
            assert all(isinstance(example.label, float) and 0 <= example.label <= 5 for example in found)


@pytest.mark.data
def test_cola_and_mrpc_keep_their_text_exactly(data_dir: Path) -> None:
    cola = read_examples(data_dir / "tasks/glue/CoLA/dev.tsv", pair=False)
    assert plain(cola)[4] == ("As you eat the most, you want the least.", "0")
    mrpc = read_examples(data_dir / "tasks/glue/MRPC/dev.tsv", pair=True)
    assert mrpc[0].second == '" The foodservice pie business does not fit our long-term growth strategy .'


def test_records_keep_unicode(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", json.dumps({"text": "naïve 👩‍👩‍👧", "label": "好"}, ensure_ascii=False) + "\n")
    assert plain(read_examples(path, pair=False)) == [("naïve 👩‍👩‍👧", "好")]


def test_two_texts_are_no_two_files(tmp_path: Path) -> None:
    assert plain(read_examples(("good", "bad"), pair=False)) == [("good", None), ("bad", None)]
    one = write(tmp_path, "a.txt", "good\n")
    with pytest.raises(KeelError, match="two parallel files are for task='seq2seq'"):
        read_examples((one, tmp_path / "b.txt"), pair=False)
    assert len(read_examples((str(one), "b.txt"), pair=False)) == 2  # texts, whatever files there are


def test_a_series_is_a_column_or_a_row() -> None:
    texts = ["written words", "the name of a book", "a tool"]
    words = pandas.Series(texts, index=["text", "title", "hammer"])
    assert plain_source(words.rename("text")) == texts
    assert plain_source(pandas.Series(texts, index=["text", "text", "hammer"])) == texts
    with pytest.raises(UsageError, match=r"to_dict\(\) for a row, series\.tolist\(\) for texts"):
        plain_source(words)
    table = pandas.DataFrame({"text": ["so good"], "brand": ["x"], "country": ["y"]})
    assert plain_source(table.iloc[0]) == {"text": "so good", "brand": "x", "country": "y"}
    assert plain_source(pandas.Series({"text": "a", "stars": 3})) == {"text": "a", "stars": 3}
    assert plain_source(pandas.Series({"text": "a", "label": "b"})) == {"text": "a", "label": "b"}


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


@pytest.mark.parametrize("form", CSV_FORMS)
def test_a_csv_with_usual_names_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    stdin(monkeypatch, CSV_FORMS[form])
    assert read_examples("-", pair=False).values == ["1", "0", "1"]


def test_sentences_with_commas_on_standard_input_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["Sentence, he said, was passed.", "So good, so bad", "text"]
    stdin(monkeypatch, "\n".join(lines))
    assert read_examples("-", pair=False).texts == lines
    stdin(monkeypatch, "words,other\nso good,1\nso bad,2\n")
    found = read_examples("-", pair=False, columns=Columns(text_column="words"))
    assert found.texts == ["so good", "so bad"]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_no_part_of_a_table_is_left_after_an_error(tmp_path: Path, name: str) -> None:
    def rows() -> Any:
        yield ["a", 1]
        raise KeelError("the second row")

    with pytest.raises(KeelError, match="the second row"):
        write_table(tmp_path / name, ["text", "label"], rows())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["Kommentar", "评论"])
def test_a_possible_column_name_above_one_column_of_texts_is_reported(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, "new.csv", f"{name}\nso good\nso bad\nfine\n")
    assert any(f"text_column {name}" in each for each in notes(path, pair=False))
    assert read_examples(path, pair=False, columns=Columns(text_column=name)).texts == ["so good", "so bad", "fine"]
    assert not any("text_column" in each for each in notes(write(tmp_path, "a.csv", "so good\nso bad\n"), pair=False))
    assert not any("text_column" in each for each in notes(write(tmp_path, "a.txt", "Good\nso bad\n"), pair=False))


def test_a_missing_text_is_a_python_warning_where_nobody_gets_notes() -> None:
    with pytest.warns(UserWarning, match="item 1: 1 text is missing and read as empty"):
        assert fill_missing(["a", None], ignore) == ["a", ""]
    events: list[Event] = []
    fill_missing(["a", None], events.append)
    assert "1 text is missing" in events[0]["text"]
