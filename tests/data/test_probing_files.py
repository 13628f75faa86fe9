"""Probing data: tagged words with several labels, labelled spans and pairs, WiC; bad input is refused in a sentence."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from keel.data.probing_data import ProbingData
from keel.data.probing_files import read_probing_data
from keel.errors import KeelError, UsageError

CONLLU = """# text = They don't eat red fish
1	They	they	PRON	PRP	Case=Nom|Number=Plur	4	nsubj	_	_
2-3	don't	_	_	_	_	_	_	_	_
2	do	do	AUX	VBP	Tense=Pres	4	aux	_	_
3	n't	not	PART	RB	_	4	advmod	_	_
4	eat	eat	VERB	VB	VerbForm=Inf	0	root	_	_
5	red	red	ADJ	JJ	Degree=Pos	6	amod	_	_
6	fish	fish	NOUN	NN	Number=Sing	4	obj	_	_
6.1	_	_	_	_	_	_	_	_	_

"""


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., ProbingData]:
    """The training data of a text under this name, with itself as test data."""

    def read_text(name: str, text: str, wanted: Sequence[str] = (), examples: int = 1000) -> ProbingData:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_probing_data(path, path, wanted, examples=examples)[0]

    return read_text


Read = Callable[..., ProbingData]


def test_treebank_has_six_tasks_and_one_per_feature(read: Read) -> None:
    found = read("a.conllu", CONLLU)
    assert [*found.tasks] == ["upos", "xpos", "feats", "deprel", "head", "arc"]
    assert found.texts[0].words == ("They", "do", "n't", "eat", "red", "fish")
    assert found.tasks["upos"].labels == ["PRON", "AUX", "PART", "VERB", "ADJ", "NOUN"]
    assert found.tasks["feats"].labels[:3] == ["Case=Nom|Number=Plur", "Tense=Pres", "_"]
    assert found.tasks["head"].labels == ["right 3 to 5", "right 2", "right 1", "root", "right 1", "left 2"]
    arcs = found.tasks["arc"]
    words = found.texts[0].words
    pairs = [tuple(words[found.spans[span][1]] for span in pair) for pair in arcs.spans]
    assert [*zip(pairs, arcs.labels, strict=True)] == [
        (("They", "eat"), "nsubj"),
        (("do", "eat"), "aux"),
        (("n't", "eat"), "advmod"),
        (("red", "fish"), "amod"),
        (("fish", "eat"), "obj"),
    ]
    assert arcs.types[0] == "they eat"
    assert {"Case", "Number", "Tense"} <= {*found.known}
    number = read("a.conllu", CONLLU, ("Number",)).tasks["Number"]
    assert (number.labels, number.types) == (["Plur", "Sing"], ["they", "fish"])


def test_fields_without_values_are_no_tasks_by_default(read: Read) -> None:
    bare = "\n".join(line.replace("PRP", "_").replace("VBP", "_") for line in CONLLU.splitlines())
    for tag in ("RB", "VB", "JJ", "NN"):
        bare = bare.replace(f"\t{tag}\t", "\t_\t")
    assert [*read("a.conllu", bare + "\n\n").tasks] == ["upos", "feats", "deprel", "head", "arc"]
    with pytest.raises(KeelError, match=r"a\.conllu:2: 6 words have no XPOS"):
        read("a.conllu", bare, ("xpos",))


def test_columns_are_tasks_by_number_or_name(read: Read) -> None:
    text = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n"
    found = read("a.txt", text)
    assert [*found.tasks] == ["column 2", "column 3"]
    assert found.tasks["column 3"].labels == ["B-ORG", "O", "B-PER"]
    assert [*read("a.txt", text, ("ner=3", "2", "upos")).tasks] == ["ner", "column 2"]
    with pytest.raises(UsageError, match=r"probe ner=4: .* columns 2 to 3"):
        read("a.txt", text, ("ner=4",))


def test_records_have_spans_of_characters_or_words(read: Read) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "the bank lends", "span1": [4, 8], "label": "money"},
        {"words": ["the", "river", "bank"], "span1": [2, 3], "label": "river"},
    ]
    found = read("senses.jsonl", "\n".join(map(json.dumps, rows)))
    assert found.known == ("senses",)
    assert found.tasks["senses"].types == ["bank", "bank"]
    assert found.spans.tolist() == [[0, 4, 8], [1, 2, 3]]
    in_memory, _ = read_probing_data(rows, rows, examples=10)
    assert in_memory.tasks["spans"].labels == ["money", "river"]


def test_edge_probing_and_both_forms_of_wic_are_read(read: Read, tmp_path: Path) -> None:
    edge = {
        "text": "The cat sat",
        "targets": [
            {"span1": [0, 2], "span2": [2, 3], "label": "ARG0"},
            {"span1": [1, 2], "span2": [2, 3], "label": "ARG1"},
        ],
    }
    found = read("srl.json", json.dumps([edge]))
    assert found.tasks["srl"].labels == ["ARG0", "ARG1"]
    assert found.spans.tolist() == [[0, 0, 2], [0, 2, 3], [0, 1, 2]]  # the verb is one span
    glue = {"word": "hook", "sentence1": "Hook a fish", "sentence2": "a hook", "start1": 0, "end1": 4, "start2": 2,
            "end2": 6, "label": False}  # fmt: skip
    found = read("wic.jsonl", json.dumps(glue))
    assert (found.tasks["wic"].labels, found.tasks["wic"].types) == (["False"], ["hook\thook"])
    (tmp_path / "dev.gold.txt").write_text("F\n")
    found = read("dev.data.txt", "hook\tV\t0-1\tHook a fish .\ta hook .\n")
    assert (found.tasks["wic"].labels, found.tasks["wic"].types) == (["F"], ["hook\thook"])
    assert found.spans.tolist() == [[0, 0, 1], [1, 1, 2]]


def test_large_files_are_sampled_by_sentence_and_a_fifth_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(f"w{number} A\nx{number} B\ny C" for number in range(50)) + "\n")
    notes: list[str] = []
    train, test = read_probing_data(path, None, examples=30, seed=1, on_event=lambda event: notes.append(event["text"]))
    assert (len(train.spans), len(test.spans)) == (30, 30)
    assert not {text.words for text in train.texts} & {text.words for text in test.texts}
    assert any("a fifth (10 of 50)" in each for each in notes)
    assert any("30 of 120" in each for each in notes)
    again, _ = read_probing_data(path, None, examples=30, seed=1)
    other, _ = read_probing_data(path, None, examples=30, seed=2)
    assert again.texts == train.texts != other.texts


BAD: dict[str, tuple[str, str, str]] = {
    "no label": ("a.jsonl", '{"text": "a b", "span1": [0, 1]}', r"a\.jsonl:1: the label is missing"),
    "outside": ("a.jsonl", '{"text": "a b", "span1": [0, 9], "label": "x"}', r"span1 \[0, 9\] .* 3 characters"),
    "empty": ("a.jsonl", '{"text": "a b", "span1": [1, 1], "label": "x"}', r"span1 \[1, 1\]"),
    "words": ("a.jsonl", '{"words": ["a"], "span1": [0, 2], "label": "x"}', "text of 1 word:"),
    "no span": ("a.jsonl", '{"text": "a b", "label": "x"}', "span1 must be .* missing"),
    "no text": ("a.jsonl", '{"span1": [0, 1], "label": "x"}', "it has span1, label"),
    "half": (
        "a.jsonl",
        '{"text": "a b", "span1": [0, 1], "span2": [2, 3], "label": "x"}\n{"text": "a", "span1": [0, 1], "label": "x"}',
        r"a\.jsonl:2: span2 is missing",
    ),
    "targets": ("a.jsonl", '{"text": "a b", "targets": 3}', "targets must be a list"),
    "no records": ("a.jsonl", "", "no records|empty"),
    "plain text": ("a.txt", "Plain sentences have no labels at all .\nNone of them .\n", "no labelled words or spans"),
    "one column": ("a.txt", "word\nother\n\nmore\n\nlast\n", "without tags|no labelled"),
    "head": ("a.conllu", CONLLU.replace("6\tamod", "9\tamod"), r"a\.conllu:7: HEAD '9'"),
    "wic": ("a.data.txt", "hook\tV\t0-1\tHook a fish .\ta hook .\n", "no labels: put a.gold.txt beside it"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_sentence(name: str, read: Read) -> None:
    file, text, message = BAD[name]
    with pytest.raises(KeelError, match=message) as error:
        read(file, text)
    assert "\n" not in str(error.value)


def test_labels_of_wic_must_match_its_lines(read: Read, tmp_path: Path) -> None:
    (tmp_path / "a.gold.txt").write_text("F\nT\n")
    with pytest.raises(KeelError, match=r"has 1 line, but .* has 2"):
        read("a.data.txt", "hook\tV\t0-1\tHook a fish .\ta hook .\n")
    (tmp_path / "a.gold.txt").write_text("F\n")
    with pytest.raises(KeelError, match=r"a\.data\.txt:1: this line is not of WiC"):
        read("a.data.txt", "hook\t0-1\tHook a fish .\ta hook .\n")


@pytest.mark.parametrize("source", [5, "x", [1, 2], None])
def test_other_sources_are_refused(source: Any) -> None:
    with pytest.raises(KeelError):
        read_probing_data(source, None, examples=10)
