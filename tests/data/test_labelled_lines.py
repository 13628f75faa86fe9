"""Labelled texts are read in the text files in which they are published."""

from pathlib import Path

import pytest

from keel.data.examples import Columns, Examples, read_examples
from keel.errors import KeelError


def read(path: Path, text: str) -> Examples:
    path.write_text(text, encoding="utf-8")
    return read_examples(path, pair=False)


def test_a_label_before_each_text(tmp_path: Path) -> None:
    trec = read(tmp_path / "a.txt", "DESC:manner How did it end ?\nENTY:animal What runs ?\n" * 2)
    assert (trec[0].text, trec[0].label, trec[1].label) == ("How did it end ?", "DESC:manner", "ENTY:animal")
    with pytest.raises(KeelError, match=r"a\.txt:41: no label"):
        read(tmp_path / "a.txt", "1 a fine film\n0 no film\n" * 20 + "a film\n")


@pytest.mark.parametrize("labels", ["01", "01234", "012345", "12345"])
def test_digits_that_are_classes(tmp_path: Path, labels: str) -> None:
    found = read(tmp_path / "a.txt", "".join(f"{label} a film\n" for label in labels) * 4)
    assert ("".join(found.names), found[0].text) == (labels, "a film")


COUNTS = "3 eggs\n2 cups of flour\n1 onion\n2 carrots\n1 cup of milk\n3 lemons\n4 plums\n4 pears\n"


@pytest.mark.parametrize(
    "text", [COUNTS, "1 cup\n2 cups\n" * 9, COUNTS + "5 figs\n5 nuts\n12 eggs\n", "0 a\n" + "1 b\n" * 400]
)
def test_counts_are_part_of_the_texts(tmp_path: Path, text: str) -> None:
    found = read(tmp_path / "a.txt", text)
    assert (found.kind, found[0].text) == (None, text.split("\n")[0])


def test_whole_lines_on_request(tmp_path: Path) -> None:
    path, events = tmp_path / "a.txt", []
    assert read(path, "1 a fine film\n0 no film\n" * 20)[0].label == "1"
    found = read_examples(path, pair=False, columns=Columns(format="text"), on_event=events.append)
    assert (found[0].text, found.kind) == ("1 a fine film", None)
    assert any("start with labels" in event["text"] for event in events)


@pytest.mark.parametrize("text", ["1 one\n2 two\n3 three\n4 four\n", "10 men\nand 1 boat\n" * 4, "NB: a\nPS: b\n" * 4])
def test_numbered_lines_are_texts(tmp_path: Path, text: str) -> None:
    assert read(tmp_path / "a.txt", text).kind is None


def test_trees_have_the_label_of_their_root(tmp_path: Path) -> None:
    found = read(tmp_path / "a.txt", "(3 (2 It) (4 (2 -LRB-) (4 works)))\n(2 Yes)\n")
    assert [(each.text, each.label) for each in found] == [("It ( works", "3"), ("Yes", "2")]
    with pytest.raises(KeelError, match=r"a\.txt:2: no label"):
        read(tmp_path / "a.txt", "(3 (2 It) (4 works))\nIt works\n")


def test_labels_in_a_file_beside_the_texts(tmp_path: Path) -> None:
    (tmp_path / "label").write_text("flight\nfare\n")
    found = read(tmp_path / "seq.in", "from boston\nhow much\n")
    assert [(each.text, each.label) for each in found] == [("from boston", "flight"), ("how much", "fare")]
    with pytest.raises(KeelError, match="has 1 text, but label beside it has 2 labels"):
        read(tmp_path / "seq.in", "from boston\n")


def test_published_intents(data_dir: Path) -> None:
    for name, count, labels in (("atis/train", 4478, 21), ("snips/train", 13084, 7)):
        (path,) = (data_dir / "tasks/atis_snips" / name).glob("seq.in*")
        found = read_examples(path, pair=False)
        assert (len(found), len(found.names)) == (count, labels)
