"""Maps of many words and of texts, and clusters, as verbs and as commands."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import keel
from keel.cli import main
from keel.errors import KeelError, UsageError
from keel.formats.vector_files import Vectors, write_vectors

TOPICS = [["boat", "sail", "anchor", "harbour"], ["bread", "oven", "cake", "flour"], ["judge", "court", "law", "jury"]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Word vectors of three topics, of a word of all topics, and of further words at random."""
    random = np.random.default_rng(0)
    words = [word for topic in TOPICS for word in topic]
    centers = np.repeat(3 * np.eye(8)[:3], 4, axis=0)
    others = [f"word{number}" for number in range(2_000)]
    matrix = np.vstack([centers, np.full(8, 0.1), random.normal(size=(2_000, 8))]).astype(np.float32)
    path = tmp_path_factory.mktemp("maps") / "topics.vec"
    write_vectors(path, Vectors([*words, "the", *others], matrix + random.normal(0, 0.05, matrix.shape)), layout="text")
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("texts") / "texts.tsv"
    rows = [f"{number}\tthe {' '.join(random.choice(TOPICS[number % 3], 3))} the" for number in range(60)]
    path.write_text("\n".join(["id\ttext", *rows, "60\tnothing known"]) + "\n", encoding="utf-8")
    return path


def test_clusters_of_texts(file: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = keel.clusters(texts, model=file, out=tmp_path / "clusters.csv")
    assert len(found.clusters) == 3
    assert sorted(sorted(each.word for each in cluster.words) for cluster in found.clusters) == sorted(
        map(sorted, TOPICS)
    )
    with open(tmp_path / "clusters.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 60
    for row in rows:
        words = {each.word for each in found.clusters[int(row["cluster"]) - 1].words}
        assert {*row["text"].split()} - {"the"} <= words
    assert main(["clusters", str(texts), "--model", str(file), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["groups"] == found.groups.tolist()
    assert "1 of 61 texts left out" in printed.err
    assert main(["clusters", str(texts), "--model", str(file), "--clusters", "2"]) == 0
    assert "in 2 clusters" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["map.html", "map.svg"])
def test_a_map_of_texts_shows_clusters(file: Path, texts: Path, tmp_path: Path, name: str) -> None:
    events: list[dict] = []
    keel.clusters(texts, model=file, out=tmp_path / name, on_event=events.append)
    again = keel.word_map(file, among=texts, clusters=3, out=tmp_path / f"again-{name}")
    first, second = ((tmp_path / each).read_text(encoding="utf-8") for each in (name, again.name))
    assert first.replace("clusters of texts", "a map of texts") == second, "maps are deterministic"
    assert "60 texts by PCA" in events[-1]["text"]
    assert "3 clusters" in events[-1]["text"]
    if name == "map.svg":
        assert first.count("<circle") == 60
        assert first.count("<text") == 3
    else:
        assert first.count('<button type="button" data-cluster=') == 3


def test_a_map_of_many_words_is_a_page_of_its_own(file: Path, tmp_path: Path) -> None:
    path = keel.word_map(file, top=2_000, out=tmp_path / "many.html")
    html = path.read_text(encoding="utf-8")
    assert '<canvas id="points"' in html
    assert "2,000 words by UMAP" in html
    picture = keel.word_map(file, top=2_000, by="pca", clusters=4, out=tmp_path / "many.svg").read_text()
    assert picture.count("<circle") == 2_000
    few = keel.word_map(file, words="boat bread judge", out=tmp_path / "few.html").read_text(encoding="utf-8")
    assert "<canvas" not in few


def test_wrong_requests(file: Path, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out"):
        keel.word_map(file, among=texts, top=5, out=tmp_path / "m.html")
    with pytest.raises(UsageError, match="name a"):
        keel.clusters(texts, model=file, out=tmp_path / "m.xlsx")
    with pytest.raises(UsageError, match="1 or more"):
        keel.clusters(texts, model=file, clusters=0)
    with pytest.raises(UsageError, match="cannot form 99 clusters"):
        keel.clusters(["boat", "bread"], model=file, clusters=99)
    with pytest.raises(UsageError, match="two texts or more"):
        keel.clusters(["boat"], model=file)
    with pytest.raises(KeelError, match="the model knows no word of any text"):
        keel.clusters(["xyz", "zyx"], model=file)
    with pytest.raises(UsageError, match="by must be one of"):
        keel.word_map(file, words="boat bread", by="mds", out=tmp_path / "m.svg")  # pyright: ignore[reportArgumentType]


def test_words_that_are_not_in_the_vocabulary_are_named_where_too_few_are_left(tmp_path: Path) -> None:
    with pytest.raises(KeelError, match="'unknownqq'"):
        keel.word_map("english-words", pairs="king:unknownqq", out=tmp_path / "a.html")
    with pytest.raises(KeelError, match="'fooqq', 'unknownqq'"):
        keel.word_map("english-words", pairs="fooqq:unknownqq", out=tmp_path / "a.html")
    assert not list(tmp_path.iterdir())
