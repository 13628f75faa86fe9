"""`check` knows published datasets by their contents, and reads them as their task does."""

import json
from pathlib import Path
from typing import Any

import pytest

from keel.checks import check

COLUMNS = "中 B-ORG\n共 I-ORG\n致 O\n\n" * 5
SENTENCES = {"minimal pairs": {"sentence_good": "Cats run.", "sentence_bad": "Cats runs.", "UID": "x"}}
HELLASWAG = {"ctx": "A man sits. he", "endings": ["a", "b", "c", "d"], "label": 3, "split": "val"}
DREAM = [[["M: Late."], [{"question": "Who?", "choice": ["He", "She"], "answer": "She"}], "5-510"]]
QQP = "id\tqid1\tquestion1\tquestion2\tis_duplicate\n0\t1\ta?\tb?\t0\n1\t3\tc?\td?\t1\n"
TREC = "DESC:manner How did it end ?\nENTY:animal What runs ?\n" * 3


def facts_of(path: Path, text: str) -> dict[str, Any]:
    path.write_text(text, encoding="utf-8")
    report = check(path)
    assert not report.errors, list(report.lines())
    return report.files[str(path)]


@pytest.mark.parametrize(
    ("name", "text", "task", "contents"),
    [
        ("msra.txt", COLUMNS, "tag", "5 sentences"),
        ("msra.tsv", COLUMNS.replace(" ", "\t"), "tag", "5 sentences"),
        ("words.txt", "the/DT cat/NN sat/VB\na/DT dog/NN\n", "tag", "2 sentences"),
        ("blimp.jsonl", json.dumps(SENTENCES["minimal pairs"]) + "\n", "choose", "1 text with 2 choices"),
        ("blimp.json", json.dumps([SENTENCES["minimal pairs"]] * 2), "choose", "2 texts with 2 choices"),
        ("hellaswag.jsonl", json.dumps(HELLASWAG) + "\n", "choose", "1 text with 4 choices"),
        ("dream.json", json.dumps(DREAM), "choose", "1 text with 2 choices"),
        ("swag.csv", "startphrase,ending0,ending1,label\nHe,runs,eats,1\n", "choose", "1 text with 2 choices"),
        ("trec.txt", TREC, "", "6 texts"),
        ("cr.txt", "1 a fine film\n0 no film\n" * 3, "", "6 texts"),
        ("sst.txt", "(3 (2 It) (4 works))\n(1 (2 It) (0 (2 -LRB-) (0 fails)))\n", "", "2 texts"),
        ("qqp.tsv", QQP, "", "2 pairs"),
        ("poem.txt", "春眠不觉晓 处处闻啼鸟\n夜来风雨声 花落知多少\n\n" * 9, "", "text, Chinese"),
    ],
)  # fmt: skip
def test_published_layouts(tmp_path: Path, name: str, text: str, task: str, contents: str) -> None:
    facts = facts_of(tmp_path / name, text)
    assert facts.get("task", "").partition(" ")[0] == task
    assert facts["contents"].startswith(contents)


def test_real_files(data_dir: Path) -> None:
    tasks = data_dir / "tasks"
    report = check([tasks / "zh/msra_ner_split/dev.txt.xz", tasks / "qqp_slice/pairs.jsonl.xz"])
    facts = list(report.files.values())
    assert facts[0]["contents"] == "4,631 sentences"
    assert facts[1]["contents"] == "6,183 pairs"
    report = check(tasks / "atis_snips/atis/test/seq.in", task="classify")
    (facts,) = report.files.values()
    assert facts["labels"]["atis_flight"] == 632
    assert check(tasks / "atis_snips/atis/test/seq.in").files.popitem()[1]["contents"] == "893 sentences"


def test_all_invalid_rows_are_listed_and_counted(tmp_path: Path) -> None:
    rows = [f"text {number}\t{'ab'[number % 2]}{chr(9) * (number % 10 == 0)}" for number in range(50)]
    path = tmp_path / "ragged.tsv"
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    report = check(path)
    assert [error.where for error in report.errors] == [f"{path}:{line}" for line in (2, 12, 22, 32, 42)]
    assert list(report.lines())[-1].startswith("5 errors, ")
    assert report.files[str(path)]["contents"] == "45 texts"


@pytest.mark.parametrize(
    ("name", "text", "task", "lines"),
    [
        ("a.jsonl", '{"text": "a", "label": "x"}\n{no}\n[1]\n{"text": "b", "label": "y"}\n', "classify", (2, 3)),
        ("a.txt", "a O\nb O\n\nc\nd O O\ne O\n", "tag", (4, 5)),
        ("a.jsonl", '{"ctx": "a", "choices": []}\n{"ctx": "a", "choices": ["x", "y"]}\n{"ctx": 1}\n', "choose", (1, 3)),
        ("a.txt", "1 a b\n0 c\nd e\n" + "1 x\n0 z\n" * 20, "classify", (3,)),
        ("a.csv", "id,text\n1,a\n2\n3,b,c\n", "", (3, 4)),
    ],
)  # fmt: skip
def test_every_reader_collects_its_errors(
    tmp_path: Path, name: str, text: str, task: str, lines: tuple[int, ...]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert {f"{path}:{line}" for line in lines} <= {error.where for error in check(path, task=task).errors}


def test_many_invalid_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n' + "{\n" * 100)
    report = check(path)
    assert len(report.errors) == 21
    assert "80 more rows" in report.errors[-1].cause


PAIRS = [("tiger", "cat", 7.35), ("book", "paper", 7.46), ("king", "cabbage", 0.23), ("plane", "car", 5.77)]
BENCHMARKS = {
    "similarity.csv": ("Word 1,Word 2,Human (mean)\n{rows}", "{0},{1},{2}\n"),
    "scored.csv": ("word1,word2,score\n{rows}", "{0},{1},{2}\n"),
    "scws.txt": ("{rows}", "{number}\t{0}\tn\t{1}\tv\tThe <b> {0} </b> is\tso <b> {1} </b> was\t{2}\t10.0\t0.0\n"),
    "men.txt": ("{rows}", "{0} {1} {2}\n"),
    "analogies.txt": (": animals\n{rows}", "{0} {1} {1} {0}\n"),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_of_word_vectors(tmp_path: Path, name: str) -> None:
    form, row = BENCHMARKS[name]
    rows = "".join(row.format(*pair, number=number) for number, pair in enumerate(PAIRS, 1))
    (tmp_path / name).write_text(form.format(rows=rows))
    report = check(tmp_path / name)
    (facts,) = report.files.values()
    assert facts["contents"].startswith(("4 pairs of words", "4 analogy questions"))
    assert [(each.severity, "keel evaluate" in each.remedy) for each in report.findings] == [("note", True)]


CONLLU = "".join(
    f"{number}\t{word}\t{word}\tNOUN\t_\t_\t{number - 1}\tdep\t_\t_\n" for number, word in ((1, "a"), (2, "b"))
)


@pytest.mark.parametrize(
    ("name", "text", "contents"),
    [
        ("a.conllu", f"{CONLLU}\n" * 3, "3 sentences"),
        ("a.csv", "text,label,score\nso,good,1\nno,bad,0\n", "2 texts"),
        ("a.txt", ": it began\nThen it was over. And then?\n", "text"),
        ("b.txt", "turn on the light\nturn off the light\n\nopen the front door\n", "text"),
    ],
)
def test_other_files_are_no_benchmarks(tmp_path: Path, name: str, text: str, contents: str) -> None:
    (tmp_path / name).write_text(text)
    (facts,) = check(tmp_path / name).files.values()
    assert facts["contents"].startswith(contents)
