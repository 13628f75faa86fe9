import io
import json
import random
import sys
from pathlib import Path

import pytest

from keel.api.finetuning import finetune
from keel.checks import Finding, Report, check, corpus_checks, size_advice
from keel.cli import main
from keel.data.corpus import Corpus
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.model import Model
from keel.systems.bert import Bert


@pytest.fixture(scope="module")
def model(english_corpus: Path) -> Model:
    tokenizer = Tokenizer.train(Corpus(english_corpus), size=400)
    system = Bert(layers=1, width=64, max_positions=32, sequence_length=32)
    return Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)


def find_one(report: Report, severity: str, *parts: str) -> Finding:
    """The single finding of this severity that contains all these parts."""
    hits = [it for it in report.findings if it.severity == severity and all(part in str(it) for part in parts)]
    assert len(hits) == 1, list(report.lines())
    return hits[0]


def write(path: Path, rows: list[str], header: str = "sentence\tlabel") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_a_good_corpus(english_corpus: Path, model: Model) -> None:
    report = check(english_corpus, model=model)
    facts = report.files[str(english_corpus)]
    assert facts["encoding"] == "utf-8"
    assert facts["documents"] == 300
    assert facts["contents"] == "text, English (detected)"
    ids, _ = model.tokenizer.encode_flat([english_corpus.read_text()])
    assert facts["tokens"] == f"{len(ids):,}"
    assert not report.findings
    assert list(report.lines())[-1] == "0 errors, 0 warnings"


def test_chinese_in_gb18030(chinese_corpus: Path, tmp_path: Path) -> None:
    file = tmp_path / "gb.txt"
    file.write_bytes(chinese_corpus.read_text(encoding="utf-8").encode("gb18030"))
    report = check(file)
    assert report.files[str(file)]["encoding"] == "gb18030"
    assert "Chinese" in report.files[str(file)]["contents"]
    find_one(report, "note", "read as gb18030", "change with encoding")


def test_copies_faults_and_long_lines_are_placed(tmp_path: Path) -> None:
    file = tmp_path / "c.txt"
    lines = [
        b"First line of text here. And more.",
        b"",
        b"Second document.",
        b"",
        b"First line of text here. And more.",
        b"",
    ]
    lines += [b"bad \xff byte.", b"", b"nul \0 here.", b"", b"x " * 600_000]
    file.write_bytes(b"\n".join(lines))
    assert find_one(check(file), "error", "not valid utf-8", "encoding utf-8").where == f"{file}:7"
    report = check(file, encoding="utf-8")
    assert report.files[str(file)]["duplicates"] == {"lines": 1, "documents": 1}
    assert find_one(report, "warning", "dedup='documents'", "of line 1").where == f"{file}:5"
    assert find_one(report, "warning", "U+FFFD").where == f"{file}:7"
    assert find_one(report, "warning", "NUL").where == f"{file}:9"
    assert find_one(report, "warning", "1,200,000 characters").where == f"{file}:11"
    assert not report.errors


@pytest.mark.parametrize("size", [5000, 2_500_000])
def test_first_overlong_word_is_located(tmp_path: Path, size: int) -> None:
    file = tmp_path / "c.txt"
    file.write_text(f"Some text. And more.\n\nA {'x' * size} b {'y' * 1000}\n{'z' * 999}\n")
    finding = find_one(check(file), "warning", "1,000 characters or more without whitespace")
    assert finding.where == f"{file}:3"


def test_a_table_is_read_as_a_corpus_is(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    texts = ["First line.\n\nSecond line.", None, "Another document.", "Another document."]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    report = check(file)
    assert report.files[str(file)]["documents"] == len(list(Corpus(file).documents())) == 3
    assert find_one(report, "warning", "dedup='documents'", "of line 3").where == f"{file}:4"
    assert find_one(report, "warning", "dedup='lines'", "of line 3").where == f"{file}:4"
    find_one(report, "note", "1 row without 'text'")


def test_a_document_longer_than_a_block_is_one(tmp_path: Path) -> None:
    file = tmp_path / "c.txt"
    lines = [f"Sentence {number} stands here. {'word ' * 300}" for number in range(1000)]
    file.write_text("Short one.\n\n" + "\n".join(lines) + "\n" + "x " * 1_500_000 + "\nThe end.\n\nLast one.")
    report = check(file)
    assert report.files[str(file)]["documents"] == len(list(Corpus(file).documents())) == 3
    assert report.files[str(file)]["duplicates"] == {"lines": 0, "documents": 0}
    assert find_one(report, "warning", "3,000,000 characters").where == f"{file}:1003"


def test_number_of_compared_lines_is_bounded(english_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_checks, "MAX_COMPARED", 100)
    report = check(english_corpus)
    find_one(report, "note", "only the first 100 distinct lines", "dedup='lines'")
    find_one(report, "note", "only the first 100 distinct documents")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"One. Two.\n\nThree.\n")))
    (facts,) = check("-").files.values()
    assert facts["documents"] == 2
    for source in ("-", [Path("-")]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text,label\na,x\nb,y\n,y\na,x\n")))
        report = check(source)
        assert list(report.files) == ["standard input"]
        assert all(each.where.startswith("standard input") for each in report.findings)
        find_one(report, "warning", "1 text is empty")
        assert "tmp" not in str(report)


@pytest.mark.parametrize(("text", "sentence"), [("", "no text"), (" \n\n", "no text"), ("Only one.", "one sentence")])
def test_too_little_text_is_an_error(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "c.txt").write_text(text)
    find_one(check(tmp_path / "c.txt"), "error", sentence)


def test_one_document(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("One sentence. Then another.\nAnd a third.\n")
    find_one(check(tmp_path / "c.txt"), "warning", "single document", "use pair_objective")


def test_unknown_tokens(chinese_corpus: Path, model: Model) -> None:
    find_one(check(chinese_corpus, model=model), "warning", "unknown to the model", "tokenizer")


def test_labelled_texts_that_a_model_cannot_read(tmp_path: Path, model: Model) -> None:
    foreign = write(tmp_path / "zh.tsv", ["水手在船上\tsea", "面包师做面包\tfood"] * 5)
    find_one(check(foreign, model=model, task="classify"), "warning", "100.0% of the tokens are unknown to the model")
    known = write(tmp_path / "en.tsv", ["the sailor sails\tsea", "the baker bakes\tfood"] * 5)
    report = check(known, model=model, task="classify")
    assert not any("unknown" in line for line in report.lines())


def test_a_table_without_the_column(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", ["a b c,2020-01-01,x y", "d e f,2020-01-02,z"], "body,date,author")
    finding = find_one(check(file), "error", "'body', 'date', 'author'", "text_column")
    assert finding.where == f"{file}:2"
    assert check(file, text_column="body").files[str(file)]["documents"] == 2


def test_labelled_files(tmp_path: Path, model: Model) -> None:
    rng = random.Random(0)
    rows = [f"{'very ' * rng.randrange(20)}good boat {number}\tsea" for number in range(40)]
    rows += [f"{'very ' * rng.randrange(20)}warm cake {number}\tfood" for number in range(30)]
    train = write(tmp_path / "train.tsv", [*rows, "good  boat\tsea", "good boat\tfood", "\tfood", rows[3], "odd\trare"])
    test = write(tmp_path / "test.tsv", [rows[5], "new boat\tsea", "new sky\tsky"])
    report = check([train, test], model=model)
    facts = report.files[str(train)]
    assert facts["labels"] == {"sea": 42, "food": 32, "rare": 1}
    assert facts["tokens in each"]["longest"] > facts["tokens in each"]["median"]
    assert "above 32" in facts["too long"]
    assert find_one(report, "warning", "another label", f"{train}:72 'sea'").where == f"{train}:73"
    assert find_one(report, "warning", "empty").where == f"{train}:74"
    assert find_one(report, "note", "duplicate example", f"{train}:5").where == f"{train}:75"
    assert find_one(report, "warning", "fewer than 5", "'rare'").where == str(train)
    assert find_one(report, "warning", "1 of its 3 texts (33.3%)", f"{train}:7").where == f"{test}:2"
    assert find_one(report, "warning", "'sky'").where == f"{test}:4"
    find_one(report, "note", "train.tsv", "text in 'sentence', label in 'label'")


def test_sorting_saves_padding(tmp_path: Path) -> None:
    rows = [f"{'x' * (1 + number * 37 % 300)}{number}\t{number % 2}" for number in range(640)]
    padding = check(write(tmp_path / "t.tsv", rows)).files[str(tmp_path / "t.tsv")]["padding"]
    mixed, ordered = (int(part.split("%")[0].split()[-1]) for part in padding.split(","))
    assert mixed > 40
    assert ordered < 10


def test_kinds_of_labelled_files(tmp_path: Path) -> None:
    pair = write(tmp_path / "p.tsv", ["a b\tc d\t1", "e f\tg\t0"] * 3, "sentence1\tsentence2\tlabel")
    fast = tmp_path / "f.txt"
    fast.write_text("__label__x some text\n__label__y other text\n")
    score = tmp_path / "s.jsonl"
    score.write_text("".join(json.dumps({"text": f"t {n}", "score": n / 4}) + "\n" for n in range(8)))
    report = check([pair, fast, score])
    assert report.files[str(pair)]["contents"] == "6 pairs"
    assert report.files[str(fast)]["labels"] == {"x": 1, "y": 1}
    assert report.files[str(score)]["labels"] == {"from": 0.0, "to": 1.75, "mean": 0.875}


def test_one_class_and_skew(tmp_path: Path) -> None:
    one = write(tmp_path / "one.tsv", [f"text {number}\tx" for number in range(9)])
    find_one(check(one), "error", "only one class, 'x'")
    skew = write(tmp_path / "skew.tsv", [f"text {number}\t{'x' if number > 5 else 'y'}" for number in range(99)])
    find_one(check(skew), "warning", "94% of the examples are 'x'", "Matthews")


def test_singular_of_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "a.conll"
    file.write_text("EU B-ORG\nrejects O\n\n")
    assert check([file], task="tag").files[str(file)]["contents"] == "1 sentence"


def test_text_without_tags_is_an_error_where_tags_are_to_be_learned(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("John sleeps.\nSo does Mary, they say.\n")
    report = check([tmp_path / "a.txt"] * 2, task="tag")
    find_one(report, "error", "was read as text without tags", "use format='columns'")
    assert len(report.errors) == 1  # the other may be one to predict for
    with pytest.raises(KeelError, match=r"a\.txt was read as text without tags"):
        finetune("word2vec", tmp_path / "a.txt", task="tag")


def test_seq2seq_pairs(tmp_path: Path, model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    sides = {name: tmp_path / name for name in ("train.en", "train.de", "test.en", "test.de")}
    for name, path in sides.items():
        word, count = ("boat" if name.endswith("en") else "Boot"), 30 if name.startswith("train") else 3
        path.write_text("".join(f"{word} {number}{' far' * (40 * (number == 29))}\n" for number in range(count)))
    report = check(sides.values(), task="seq2seq", model=model)
    facts = report.files[f"{sides['train.en']} and train.de"]
    assert facts["contents"] == "30 sources with their targets"
    assert facts["encoding"] == "utf-8"
    assert facts["tokens in targets"]["longest"] > 32
    assert facts["too long"] == "3.3% above 32, excluded from training"
    assert "labels" not in facts
    find_one(report, "warning", "3 of its 3 texts (100.0%)", f"{sides['train.en']}:1")
    assert len(report.findings) == 1
    for files in ([sides["train.en"], sides["test.de"]], [f"{sides['train.en']},{sides['test.de']}"]):
        assert main(["check", *map(str, files), "--task", "seq2seq"]) == 1
        assert "has 30 lines and" in capsys.readouterr().out
    find_one(check(sides["train.en"], task="seq2seq"), "error", "has sources without targets")
    table = write(tmp_path / "t.tsv", ["one\teins", "two\tzwei", "one\tein", "two\tzwei"], "source\ttarget")
    report = check([table, sides["test.en"], sides["test.de"]], task="seq2seq")
    assert [facts["contents"].split()[0] for facts in report.files.values()] == ["4", "3"]
    assert find_one(report, "note", "1 duplicate source has another target").where == f"{table}:4"
    assert find_one(report, "note", "1 duplicate example").where == f"{table}:5"
    assert not [finding for finding in report.findings if finding.severity != "note"]


def test_a_list_is_a_list_of_texts_or_of_labelled_texts(tmp_path: Path) -> None:
    file = str(write(tmp_path / "one.tsv", ["text\tx", "text\ty"]))
    (facts,) = check([file, "another text. And more."]).files.values()
    assert (facts["documents"], "encoding" in facts) == (2, False)
    report = check([("good film", "good"), ("bad film", "bad"), ("bad film", "bad")])
    assert report.files["the list"]["contents"].startswith("3 ")
    find_one(report, "note", "1 duplicate example")
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": ["good film", "bad film"] * 3, "label": ["good", "bad"] * 3})
    assert check(table, task="classify").files["the table"]["contents"].startswith("6 ")
    find_one(check([("a", "b", "c", "d")], task="classify"), "error", "give a text or (text, label)")


def test_the_command_exits_1_on_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "one.tsv", [f"text {number}\tx" for number in range(9)])
    assert main(["check", str(file), "--task", "classify"]) == 1
    assert "error    " in capsys.readouterr().out
    assert main(["check", str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["severity"] == "error"
    assert main(["check", str(tmp_path)]) == 1
    assert "is a folder" in capsys.readouterr().err
    with pytest.raises(UsageError, match="classify"):
        check(file, task="clasify")
    with pytest.raises(KeelError, match="no file"):
        check(tmp_path / "nothing.txt")


def test_minutes_recommend_a_size_by_measurement(english_corpus: Path) -> None:
    events: list[str] = []
    report = check(english_corpus, minutes=0.01, device="cpu", on_event=lambda event: events.append(event["text"]))
    assert list(report.forecast["measured tokens/s"]) == ["tiny"]  # too little time for anything larger
    assert report.forecast["measured tokens/s"]["tiny"] > 0
    assert "--size tiny --system.sequence_length 128 --batch 16 --minutes 0.01" in report.forecast["recommended"]
    assert "measured on cpu" in events[0]


def test_slow_sizes_are_reported_as_not_measured(english_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_advice, "_speed", lambda *_: 500.0)
    report = check(english_corpus, minutes=1e6, device="cpu")
    assert list(report.forecast["measured tokens/s"]) == ["tiny"]
    assert report.forecast["not measured"].startswith("mini and larger")


def test_more_minutes_recommend_a_larger_size(
    english_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size_advice, "_speed", lambda *_: 20_000.0)
    sizes = []
    for minutes in (1, 20):
        report = check(english_corpus, minutes=minutes, device="cpu")
        sizes.append(report.forecast["recommended"].split()[1])
    assert sizes == ["tiny", "mini"]
    with pytest.raises(UsageError, match="raw text"):
        check(write(tmp_path / "labels.tsv", ["a\tx", "b\ty"] * 4), minutes=1)
    with pytest.raises(UsageError, match="minutes inf would never end"):
        check(english_corpus, minutes=float("inf"))


def test_a_json_array_that_cannot_be_read_is_not_called_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keel.data.text_files.MAX_LINE", 50)
    monkeypatch.setattr("keel.data.table_files.MAX_LINE", 50)
    (file := tmp_path / "a.json").write_text(json.dumps([{"text": "x" * 51, "label": 1}]))
    (finding,) = (each for each in check(file).findings if each.severity == "error")
    assert finding.where == f"{file}:1"
    assert "more than 50 characters" in finding.cause


def test_the_repr_counts_findings() -> None:
    report = Report(files={"a": {}}, findings=[Finding("note", "a", "b"), Finding("error", "a", "b")])
    assert repr(report) == "Report(a: 1 error, 0 warnings, 1 note)"
