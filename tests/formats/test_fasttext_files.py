"""gensim and we read each other's models of fastText; quantised files are read; a fault is reported in one sentence."""

import dataclasses
import struct
from pathlib import Path
from typing import Any

import gensim
import numpy as np
import pytest
import torch
from gensim.models import FastText as TheirFastText
from gensim.models.fasttext import load_facebook_model, save_facebook_model

from keel.api.conversion import convert
from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.data.label_kinds import MultiLabel
from keel.errors import KeelError, UsageError
from keel.formats import fasttext_files
from keel.formats.fasttext_binary import Contents, Settings, is_fasttext, read_contents, write_contents
from keel.model import Model
from keel.systems.fasttext import FastText

THEIRS = Path(gensim.__file__).parent / "test" / "test_data"
UNSEEN = ["преступление", "纸飞机", "unseenwordz", "é", "a", "naïve-ish"]
SETTINGS = Settings(6, 5, 5, 1, 5, 1, 3, 3, 0, 0, 0, 100, 1e-4)


def write(path: Path, contents: Contents) -> None:
    with open(path, "wb") as file:
        write_contents(file, contents)


def vector(model: Model, word: str) -> np.ndarray:
    return model.encode(word)


@pytest.mark.parametrize("name", ["crime-and-punishment.bin", "toy-model.bin", "lee_fasttext_new.bin"])
def test_files_in_gensims_wheel(name: str) -> None:
    ours, theirs = Model.load(THEIRS / name), load_facebook_model(str(THEIRS / name))
    space = ours.vector_space()
    assert space.words == theirs.wv.index_to_key
    cut = [place for place, word in enumerate(space.words) if word != "</s>"]  # fastText does not, gensim does
    np.testing.assert_allclose(space.matrix[cut], theirs.wv.vectors[cut], atol=1e-6)
    for word in UNSEEN:
        np.testing.assert_allclose(vector(ours, word), theirs.wv[word], atol=1e-6)


def test_a_classifier_in_gensims_wheel(tmp_path: Path) -> None:
    path = THEIRS / "pang_lee_polarity_fasttext.bin"
    model = Model.load(path)
    assert set(model.label_names) == {"pos", "neg"}
    assert sum(found.confidence for found in [model.predict("a gorgeous , witty film")]) > 0.5
    write(tmp_path / "same.bin", read_contents(path))  # it holds a word that is not UTF-8
    assert (tmp_path / "same.bin").read_bytes() == path.read_bytes()


def test_we_read_what_gensim_writes(tmp_path: Path) -> None:
    sentences = [["the", "cat", "sat"], ["the", "dog", "纸飞机", "sat"]] * 20
    theirs = TheirFastText(sentences, vector_size=8, min_count=1, epochs=2, workers=1, bucket=60, min_n=2, max_n=4)
    save_facebook_model(theirs, str(tmp_path / "x.bin"))
    ours = Model.load(tmp_path / "x.bin")
    for word in ["the", "cat", "纸飞机", *UNSEEN]:
        np.testing.assert_allclose(vector(ours, word), theirs.wv[word], atol=1e-6)


def test_gensim_reads_what_we_write(english_corpus: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"vocabulary": 200, "batch": 4, "width": 8, "chunk_length": 40, "threads": 1}
    ours = pretrain("fasttext", english_corpus, out=tmp_path / "m", epochs=1, buckets=60, subsample=0.0, **settings)
    convert(tmp_path / "m", tmp_path / "x.bin")
    theirs = load_facebook_model(str(tmp_path / "x.bin"))
    space = ours.vector_space()
    assert space.words == theirs.wv.index_to_key
    np.testing.assert_allclose(theirs.wv.vectors, space.matrix, atol=1e-6)
    for word in ("преступление", "unseenwordz"):  # our own rules cut the others
        np.testing.assert_allclose(vector(ours, word), theirs.wv[word], atol=1e-6)
    convert(tmp_path / "x.bin", tmp_path / "again")
    back = Model.load(tmp_path / "again")
    assert back.objective is not None
    assert torch.equal(back.tensors()["contexts"], ours.tensors()["contexts"])
    for name in ("words.weight", "grams.weight"):
        assert torch.equal(back.encoder.state_dict()[name], ours.encoder.state_dict()[name])
    finetune(ours, [("a sailor", "who"), ("an anchor", "what")] * 3, dev=None, freeze=True, out=tmp_path / "frozen")
    with pytest.raises(KeelError, match="no classifier on frozen vectors"):
        convert(tmp_path / "frozen", tmp_path / "y.bin")
    assert not (tmp_path / "y.bin").exists()


def test_a_copy_that_differs_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finetune("fasttext", [("good", "b"), ("bad", "a")] * 4, out=tmp_path / "m", dev=None, width=6, buckets=30)
    (tmp_path / "x.bin").write_bytes(b"old")
    monkeypatch.setattr(fasttext_files, "read_contents", lambda path: small())
    with pytest.raises(KeelError, match="differs when it is read back"):
        convert(tmp_path / "m", tmp_path / "x.bin", overwrite=True)
    assert (tmp_path / "x.bin").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "x.bin"]


def test_labels_without_counts_keep_their_order(tmp_path: Path) -> None:
    finetune(
        "fasttext", [("good", "b"), ("bad", "a"), ("bad", "a")] * 4, out=tmp_path / "m", dev=None, width=6, buckets=30
    )
    stored = Model.load(tmp_path / "m").to_stored()
    task = {name: value for name, value in stored.config["keel"]["task"].items() if name != "label_counts"}
    config = {**stored.config, "keel": {**stored.config["keel"], "task": task}}
    fasttext_files.write(tmp_path / "x.bin", dataclasses.replace(stored, config=config))
    assert read_contents(tmp_path / "x.bin").labels == [f"__label__{name}" for name in stored.labels]


@pytest.mark.parametrize("loss", ["softmax", "hierarchical", "negative", "one-vs-all"])
def test_a_classifier_goes_there_and_back(tmp_path: Path, loss: str) -> None:
    examples = [("good fun", "b"), ("bad and dull", "a"), ("dull", "a"), ("so so", "c"), ("a bad one", "a")] * 4
    settings: dict[str, Any] = {"width": 6, "word_ngrams": 2, "min_n": 2, "max_n": 3, "buckets": 30, "threads": 1}
    ours = finetune("fasttext", examples, out=tmp_path / "m", dev=None, lr=0.5, label_loss=loss, **settings)  # pyright: ignore[reportArgumentType]
    convert(tmp_path / "m", tmp_path / "x.bin")
    assert read_contents(tmp_path / "x.bin").labels == ["__label__a", "__label__b", "__label__c"]
    again = Model.load(tmp_path / "x.bin")
    texts = ["bad fun", "an unseen wordz", "", "so so dull"]
    if loss == "one-vs-all":  # fastText's own way with several labels
        assert again.task is not None
        assert again.task.labels.kind == MultiLabel()
        return
    for one, two in zip(ours.predict(texts), again.predict(texts), strict=True):
        assert one.label == two.label
        assert one.confidence == pytest.approx(two.confidence, abs=1e-6)


def quantised(matrix: np.ndarray, books: np.ndarray, part: int, norms: np.ndarray | None = None) -> tuple[bytes, Any]:
    """Bytes of a product-quantised matrix with random codes, and the matrix that they stand for."""
    rows, width = matrix.shape
    parts = -(-width // part)
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, (rows, parts), dtype=np.uint8)
    for row in range(rows):
        for number in range(parts):
            here = min(part, width - number * part)
            start = number * part * 256 + int(codes[row, number]) * here
            matrix[row, number * part : number * part + here] = books[start : start + here]
    found = struct.pack("<?2qi", norms is not None, rows, width, codes.size) + codes.tobytes()
    found += struct.pack("<4i", width, parts, part, width - (parts - 1) * part) + books.tobytes()
    if norms is not None:
        chosen = rng.integers(0, 256, rows, dtype=np.uint8)
        matrix *= norms[chosen][:, None]
        found += chosen.tobytes() + struct.pack("<4i", 1, 1, 1, 1) + norms.tobytes()
    return found, matrix


@pytest.mark.parametrize("norms", [False, True])
def test_quantised_and_pruned_files_are_read(tmp_path: Path, norms: bool) -> None:
    rng = np.random.default_rng(0)
    width, words, kept = 5, ["</s>", "cat", "dog"], [70, 3, 41, 8]
    settings = SETTINGS._replace(width=width, loss=1, buckets=90, min_n=2, max_n=3, word_ngrams=2)
    books = rng.normal(size=width * 256).astype(np.float32)
    scale = rng.normal(size=256).astype(np.float32) if norms else None
    inputs, expected = quantised(np.zeros((len(words) + len(kept), width), np.float32), books, 2, scale)
    outputs, heads = quantised(np.zeros((3, width), np.float32), books[::-1].copy(), 2, scale)
    data = struct.pack("<2i", 793712314, 12) + struct.pack("<12id", *settings)
    data += struct.pack("<3i2q", 6, 3, 3, 100, len(kept))
    for number, (word, count) in enumerate([*((word, 9) for word in words), *zip("abc", (5, 3, 3), strict=True)]):
        name = word if number < 3 else f"__label__{word}"
        data += name.encode() + struct.pack("<bqb", 0, count, number >= 3)
    data += b"".join(struct.pack("<2i", bucket, row) for row, bucket in enumerate(kept))
    path = tmp_path / "x.ftz"
    path.write_bytes(data + b"\1" + inputs + b"\1" + outputs)
    contents = read_contents(path)
    np.testing.assert_array_equal(contents.inputs, expected)
    np.testing.assert_array_equal(contents.outputs, heads)
    model = Model.load(path)
    assert isinstance(model.system, FastText)
    # By hand: what is in the bag of a text, n-grams without a row left out.
    whole = dataclasses.replace(model.system, kept_buckets=-1)
    tokenizer, texts = model.tokenizer, ["cat dogs", "", "zzz cat"]
    for text in texts:
        ids = np.array(tokenizer.encode_many([text], oov_ids=True)[0], np.int32)
        positions, _, subword_units = whole.finetuning_policy.subword_inputs(ids, np.array([0, len(ids)]), tokenizer)
        bounds, rows = [*subword_units.unit_starts.tolist(), len(subword_units.unit_ids)], []
        for place in positions.tolist():
            rows += [int(subword_units.word_ids[place]) - 5] if subword_units.word_ids[place] >= 0 else []
            parts = subword_units.unit_ids[bounds[place] : bounds[place + 1]].tolist()
            rows += [len(words) + kept.index(part) for part in parts if part in kept]
        scores = heads @ expected[rows].mean(0)
        yes = 1 / (1 + np.exp(-scores))
        probabilities = {"a": 1 - yes[1], "b": yes[1] * yes[0], "c": yes[1] * (1 - yes[0])}
        best = max(probabilities, key=lambda name: probabilities[name])
        found = model.predict(text)
        assert (found.label, found.confidence) == (best, pytest.approx(probabilities[best], abs=1e-5))
    model.save(tmp_path / "folder")
    assert Model.load(tmp_path / "folder").predict(texts) == model.predict(texts)
    with pytest.raises(KeelError, match="pruned"):
        convert(path, tmp_path / "x.bin")
    with pytest.raises(UsageError, match=r"\.ftz"):
        convert(path, tmp_path / "y.ftz")
    assert not (tmp_path / "x.bin").exists()
    for cut in range(0, path.stat().st_size, 97):
        (tmp_path / "cut.ftz").write_bytes(path.read_bytes()[:cut])
        with pytest.raises(KeelError):
            read_contents(tmp_path / "cut.ftz")


def small(**changes: Any) -> Contents:
    values: dict[str, Any] = {
        "settings": SETTINGS,
        "words": ["</s>", "a"],
        "word_counts": np.array([2, 1]),
        "labels": ["__label__x", "__label__y"],
        "label_counts": np.array([1, 1]),
        "tokens": 3,
        "inputs": np.ones((2, 6), np.float32),
        "outputs": np.ones((2, 6), np.float32),
    }
    return Contents(**{**values, **changes})


@pytest.mark.parametrize(
    ("place", "bytes_", "fault"),
    [
        (0, b"\x80\x02", "is no fastText model"),
        (4, b"\x0d", "has version 13"),
        (8, b"\0\0\0\0", "its settings are invalid"),
        (32, b"\x09", "its settings are invalid"),
        (68, b"\x07", "it says 4 entries, 7 words"),
        (-1, b"\x7f\xff", "data follows the model"),
        (-2, b"\xc0\x7f", "NaN or infinity"),
    ],
)
def test_a_fault_of_a_file_is_reported(tmp_path: Path, place: int, bytes_: bytes, fault: str) -> None:
    write(tmp_path / "x.bin", small())
    data = bytearray((tmp_path / "x.bin").read_bytes())
    data[place:] = bytes_ + (data[place + len(bytes_) :] if place >= 0 else b"")
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(KeelError, match=fault):
        read_contents(tmp_path / "x.bin")


def test_a_truncated_file_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path / "x.bin", small())
    data = (tmp_path / "x.bin").read_bytes()
    for cut in range(4, len(data)):
        (tmp_path / "cut.bin").write_bytes(data[:cut])
        assert is_fasttext(tmp_path / "cut.bin")
        with pytest.raises(KeelError, match="truncated"):
            Model.load(tmp_path / "cut.bin")
    with pytest.raises(KeelError, match="truncated"):
        convert(tmp_path / "cut.bin", tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.bin", "x.bin"]
    write(tmp_path / "odd.bin", small(words=["a"], word_counts=np.array([1])))
    with pytest.raises(KeelError, match="is 2 x 6, but its dictionary needs 1 x 6"):
        read_contents(tmp_path / "odd.bin")


def test_other_files_named_bin_are_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "word2vec.bin").write_bytes(b"1 2\ncat " + struct.pack("<2f", 1, 2) + b"\n")
    assert not is_fasttext(tmp_path / "word2vec.bin")
    assert Model.load(tmp_path / "word2vec.bin").vector_space().words == ["cat"]
    (tmp_path / "pickle.bin").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(KeelError):
        Model.load(tmp_path / "pickle.bin")
    assert not is_fasttext(tmp_path)
    assert fasttext_files.is_fasttext(THEIRS / "toy-model.bin")


def test_words_twice_or_not_utf8_keep_their_rows(tmp_path: Path) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)
    odd = small(words=["</s>", "a", "\udc97", "a "], word_counts=np.ones(4, np.int64), inputs=rows)
    write(tmp_path / "x.bin", odd)
    data = (tmp_path / "x.bin").read_bytes().replace(b"a \0", b"a\0")
    (tmp_path / "x.bin").write_bytes(data)
    model = Model.load(tmp_path / "x.bin")
    assert model.vector_space().words == ["</s>", "a 1", "\\x97", "a"]
    np.testing.assert_array_equal(model.encode("a"), rows[3])
