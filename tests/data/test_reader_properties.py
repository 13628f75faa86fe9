"""Property tests of the readers of labelled files: round trips, and only a KeelError for arbitrary input."""

import csv
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keel.data.examples import Columns, read_examples
from keel.data.parallel_text import read_aligned
from keel.data.table_writing import write_table
from keel.data.tag_schemes import Entity, Scheme, detect_scheme, extract_entities, invalid_transitions, write_tags
from keel.data.tagged_sentences import read_tagged_sentences
from keel.errors import KeelError
from keel.tasks import TASKS

bounded = settings(
    max_examples=40, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LINE = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], exclude_characters='"\u2028'), max_size=30)
WORD = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8)
LABEL = st.sampled_from(["good", "bad", "so-so"])
TAG = st.sampled_from(["NN", "VB", "DT", "PUNCT"])
ROWS = st.lists(st.tuples(LINE.map(lambda text: f"x {text} y"), LABEL), min_size=1, max_size=12)
SENTENCES = st.lists(st.lists(st.tuples(WORD, TAG), min_size=1, max_size=8), min_size=1, max_size=5)


@bounded
@given(rows=ROWS, separator=st.sampled_from([",", ";", "\t"]), suffix=st.sampled_from([".csv", ".tsv"]))
def test_tables_are_read_as_they_were_written(
    tmp_path: Path, rows: list[tuple[str, str]], separator: str, suffix: str
) -> None:
    path = tmp_path / f"a{suffix if separator == chr(9) else '.csv'}"
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows_out = csv.writer(file, delimiter=separator, lineterminator="\n")
        rows_out.writerows([("sentence", "label"), *rows])
    examples = read_examples(path, pair=False)
    assert list(zip(examples.texts, examples.values, strict=True)) == rows
    assert examples.locations[0] == f"{path}:2"


@bounded
@given(rows=st.lists(st.tuples(ANY_TEXT, LABEL), min_size=1, max_size=12))
def test_json_lines_are_read_as_they_were_written(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    examples = read_examples(path, pair=False)
    assert list(zip(examples.texts, examples.values, strict=True)) == rows


@bounded
@given(sentences=SENTENCES, separator=st.sampled_from(["\t", " "]))
def test_columns_are_read_as_they_were_written(
    tmp_path: Path, sentences: list[list[tuple[str, str]]], separator: str
) -> None:
    path = tmp_path / "a.conll"
    path.write_text("\n".join("".join(f"{w}{separator}{t}\n" for w, t in each) for each in sentences), encoding="utf-8")
    examples = read_tagged_sentences(path, Columns(format="columns"))
    found = [list(zip(each.words, each.names, strict=True)) for each in examples]
    assert found == sentences


@bounded
@given(sentences=SENTENCES, bracketed=st.booleans())
def test_slashes_are_read_as_they_were_written(
    tmp_path: Path, sentences: list[list[tuple[str, str]]], bracketed: bool
) -> None:
    path = tmp_path / "a.txt"

    def line(sentence: list[tuple[str, str]]) -> str:
        fields = [f"{word}/{tag}" for word, tag in sentence]
        return " ".join([f"[{fields[0]}", *fields[1:-1], f"{fields[-1]}]/nt"] if bracketed and fields[1:] else fields)

    path.write_text("".join(f"{line(sentence)}\n" for sentence in sentences), encoding="utf-8")
    examples = read_tagged_sentences(path, Columns(format="slashes"))
    assert [list(zip(each.words, each.names, strict=True)) for each in examples] == sentences


@bounded
@given(
    parts=st.lists(st.tuples(st.sampled_from(["", "LOC", "PER"]), st.integers(1, 4)), max_size=8),
    scheme=st.sampled_from(["BIO1", "BIO", "BIOES", "BMES"]),
)
def test_entities_survive_every_scheme(parts: list[tuple[str, int]], scheme: Scheme) -> None:
    entities: list[Entity] = []
    length = 0
    for kind, size in parts:  # an empty type is a gap
        if kind:
            entities.append(Entity(kind, length, length + size))
        length += size
    tags = write_tags(entities, length, scheme)
    assert extract_entities(tags) == entities
    assert not [*invalid_transitions(tags, scheme)]
    if entities:
        assert detect_scheme([tags]) != "none"


@bounded
@given(pairs=st.lists(st.tuples(LINE, LINE), min_size=1, max_size=8))
def test_parallel_lines_are_read_as_they_were_written(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    pairs = [(f"a {source}", f"b {target}") for source, target in pairs]
    for name, side in zip(("a.en", "a.de"), zip(*pairs, strict=True), strict=True):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in side), encoding="utf-8")
    examples = read_aligned((tmp_path / "a.en", tmp_path / "a.de"))
    assert list(zip(examples.texts, examples.values, strict=True)) == pairs


READERS: dict[str, Any] = {
    **{name: task.read_examples for name, task in TASKS.items()},
    "columns": lambda path: read_tagged_sentences(path, Columns(format="columns")),
    "conllu": lambda path: read_tagged_sentences(path, Columns(format="conllu")),
    "slashes": lambda path: read_tagged_sentences(path, Columns(format="slashes")),
    "segmented": lambda path: read_tagged_sentences(path, Columns(format="segmented")),
}
FRAGMENT = st.sampled_from(
    ["\t", "\n", "\n\n", ",", '"', " ", "||", "__label__a ", "a/NN ", "[a/n b/n]nt ", "-DOCSTART-", "# x = 1", "1\ta\t",
     "\u3000", "label", "text", "O", "B-X", "0.5", "中文", "{", "}", '{"text": "a"}', '{"words": ["a"], "tags": ["O"]}',
     '{"context": "a", "choices": ["b", "c"], "label": 1}', "[]", "[", "]", "null", "\0", "\ufeff", "\r"]
)  # fmt: skip
CONTENT = st.one_of(
    st.binary(max_size=60),
    st.lists(st.one_of(FRAGMENT, st.text(max_size=6)), max_size=25).map(
        lambda parts: "".join(parts).encode("utf-8", "surrogatepass")
    ),
)

SUFFIXES = [".csv", ".tsv", ".jsonl", ".json", ".xlsx", ".txt", ".conll", ".conllu"]


@bounded
@given(rows=st.lists(st.tuples(ANY_TEXT.map(lambda text: f"x{text}"), LABEL), min_size=1, max_size=12))
def test_written_tables_are_read_again(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    for suffix in (".csv", ".jsonl"):
        path = tmp_path / f"a{suffix}"
        write_table(path, ["text", "label"], rows)
        examples = read_examples(path, pair=False)
        texts = [text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "") for text, _ in rows]
        assert examples.texts == (texts if suffix == ".csv" else [text for text, _ in rows])
        assert examples.values == [label for _, label in rows]


@pytest.mark.parametrize("reader", READERS)
@bounded
@given(content=CONTENT, suffix=st.sampled_from(SUFFIXES))
def test_arbitrary_files_are_read_or_refused(tmp_path: Path, reader: str, content: bytes, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with suppress(KeelError):
        examples = READERS[reader](path)
        assert len(examples) == len(examples.locations) > 0
