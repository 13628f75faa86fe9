"""Retrieval of translations in every layer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keel
from keel.cli import main
from keel.errors import KeelError, UsageError
from keel.model import Model

SENTENCES = [("the farmer is kind", "der Bauer ist nett"), ("the pilot was late", "der Pilot kam spät"),
             ("she saw a boat", "sie sah ein Boot"), ("we eat bread", "wir essen Brot"),
             ("it rained in Paris", "es regnete in Paris")]  # fmt: skip
COPIES = [(first, first) for first, _ in SENTENCES]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, english_corpus: Path) -> Model:
    shape: dict[str, Any] = {"layers": 2, "width": 64, "sequence_length": 32, "max_positions": 32, "vocabulary": 300}
    out = tmp_path_factory.mktemp("retrieval") / "bert"
    return keel.pretrain("bert", english_corpus, out=out, steps=1, batch=4, progress=False, **shape)


def test_all_layers_in_one_pass_are_those_of_encode(model: Model) -> None:
    texts = [first for first, _ in SENTENCES] + ["a long text " * 40]
    for pool in ("mean", "cls", "max", "last"):
        found = model.encode_layers(texts, pool=pool)
        assert found.shape == (len(texts), 3, 64)
        for layer in range(3):
            assert found[:, layer] == pytest.approx(model.encode(texts, layer=layer, pool=pool), abs=1e-5)


def test_layers_of_other_systems(tmp_path: Path, english_corpus: Path) -> None:
    words = keel.pretrain("word2vec", english_corpus, out=tmp_path / "w", steps=1, width=8, progress=False)
    assert words.encode_layers(["the farmer"]).shape == (1, 1, 8)
    bags = keel.finetune("onehot", [("good film", "a"), ("bad film", "b")] * 4, progress=False)
    with pytest.raises(UsageError, match="onehot has no layers"):
        bags.encode_layers(["good"])


def test_copies_are_found_and_accuracies_are_counts(model: Model) -> None:
    assert [each.mean for each in keel.retrieval(model, COPIES).layers] == [1, 1, 1]
    found = keel.retrieval(model, SENTENCES)
    assert (found.first, found.second, found.count) == ("en", "de", 5)
    assert [each.layer for each in found.layers] == [0, 1, 2]
    for each in found.layers:
        first, second = (model.encode([pair[side] for pair in SENTENCES], layer=each.layer) for side in (0, 1))
        cosines = [[float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for b in second] for a in first]
        right = [int(np.argmax(row)) == number for number, row in enumerate(cosines)]
        assert each.forward.value == sum(right) / 5
        back = [int(np.argmax(row)) == number for number, row in enumerate(np.transpose(cosines))]
        assert each.backward.value == sum(back) / 5
    assert found.best.mean == max(each.mean for each in found.layers)


def test_centring_removes_a_constant_of_a_language(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Model.encode_layers

    def shifted(self: Model, texts: list[str], **settings: Any) -> np.ndarray:
        vectors = encode(self, texts, **settings)
        return vectors + (100.0 * np.arange(64) if texts[0].endswith("!") else 0.0)

    monkeypatch.setattr(Model, "encode_layers", shifted)
    pairs = [(first, f"{first}!") for first, _ in SENTENCES]
    plain, centred = (keel.retrieval(model, pairs, center=center) for center in (False, True))
    assert not plain.centered
    assert centred.centered
    assert centred.layers[0].mean == 1 > plain.layers[0].mean


def test_repeated_sentences_and_samples(model: Model) -> None:
    notes: list[dict[str, Any]] = []
    found = keel.retrieval(model, [*SENTENCES, SENTENCES[0], ("we eat bread", "Brot essen wir")], on_event=notes.append)
    assert found.count == 5
    assert "2 pairs of 7 with a repeated sentence left out" in notes[0]["text"]
    assert keel.retrieval(model, SENTENCES, sample=3, seed=1).count == 3
    assert keel.retrieval(model, SENTENCES, sample=0).count == 5
    with pytest.raises(KeelError, match="fewer than two different pairs"):
        keel.retrieval(model, [SENTENCES[0]] * 3)
    with pytest.raises(UsageError, match="one column of sentences"):
        keel.retrieval(model, ["one", "two"])
    with pytest.raises(UsageError, match="sample must be"):
        keel.retrieval(model, SENTENCES, sample=-1)


def test_the_command_reads_tables_and_parallel_files(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path / "bert")
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in SENTENCES), encoding="utf-8")
    for side, language in enumerate(("en", "de")):
        (tmp_path / f"x.{language}").write_text("".join(f"{pair[side]}\n" for pair in SENTENCES), encoding="utf-8")
    words = ["retrieval", str(tmp_path / "bert")]
    assert main([*words, str(tmp_path / "pairs.tsv"), "--out", str(tmp_path / "r.svg"), "--center"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "mean-centred" in out[0]
    assert [line.split("  ")[0] for line in out[2:5]] == ["embeddings", "layer 1", "layer 2"]
    assert "en → de" in (tmp_path / "r.svg").read_text(encoding="utf-8")
    assert main([*words, str(tmp_path / "pairs.tsv"), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert main([*words, str(tmp_path / "x.en"), str(tmp_path / "x.de"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == table
    assert table["count"] == 5
    assert main([*words, str(tmp_path / "pairs.tsv"), "--out", "r.txt"]) == 2
