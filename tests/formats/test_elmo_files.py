"""ELMo's published files: the numbers that they came with, and the messages about broken ones."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keel
from keel.api.conversion import convert
from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.errors import KeelError, UsageError
from keel.formats.elmo_files import is_elmo, read
from keel.model import Model

h5py = pytest.importorskip("h5py")
SENTENCES = {"elmo_allennlp": "sentences.json", "elmo_bilm": "lm_embeddings_sentences.json"}


@pytest.fixture
def published(tmp_path: Path, write_elmo: Callable[[Path], None]) -> Path:
    folder = tmp_path / "published"
    write_elmo(folder)
    return folder


@pytest.mark.parametrize("name", SENTENCES)
def test_the_stored_vectors_come_out(name: str, data_dir: Path) -> None:
    """The top layer for three streams of ten sentences each, with the state carried from sentence to sentence."""
    folder = data_dir / "weights" / name
    model = Model.load(folder)
    texts = json.loads((folder / SENTENCES[name]).read_text())
    separate = []
    for stream, sentences in enumerate(texts):
        with h5py.File(folder / f"lm_embeddings_{stream}.hdf5") as file:
            for number, found in enumerate(model.encode(sentences, pool="none", carry=True)):
                stored = np.concatenate([*np.asarray(file[str(number)])], 1)
                separate.append(np.abs(found.vectors - stored).max())
    assert len(separate) == 30
    assert max(separate) < 1e-5
    first = model.encode(texts[0][0], pool="none")  # whoever has read nothing yet
    with h5py.File(folder / "lm_embeddings_0.hdf5") as file:
        assert np.abs(first.vectors - np.concatenate([*np.asarray(file["0"])], 1)).max() < 1e-5


def test_it_loads_is_converted_and_learns_a_task(published: Path, tmp_path: Path) -> None:
    assert is_elmo(published)
    model = keel.Model.load(published)
    convert(published, tmp_path / "ours")
    copy = keel.Model.load(tmp_path / "ours")
    assert np.array_equal(model.encode("unbelievable, message he"), copy.encode("unbelievable, message he"))
    examples = [("a fine day", "good"), ("an awful day", "bad")] * 4
    tuned = finetune(tmp_path / "ours", examples, dev=None, epochs=40, lr=0.1, batch=4)
    assert tuned.task is not None
    assert tuned.task.mix is not None, "as in the paper: frozen, all layers mixed"
    assert copy.fingerprint() == tuned.fingerprint()
    assert tuned.predict("a fine day").label == "good"


def test_without_words_it_cannot_go_on_learning_from_text(
    published: Path, english_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keel.api.pretraining.Tokens.build", None)  # no text is encoded in vain
    with pytest.raises(UsageError, match="no vocabulary to predict"):
        pretrain(published, english_corpus, out=tmp_path / "out", steps=1)


def change(published: Path, section: str, **values: Any) -> None:
    path = published / "tiny_options.json"
    options = json.loads(path.read_text())
    options[section] |= values
    path.write_text(json.dumps(options))


def test_weights_of_another_model_are_refused(published: Path) -> None:
    change(published, "lstm", dim=7)
    with pytest.raises(KeelError, match=r"W_0 is 8 x 24, but the options need 8 x 28"):
        read(published)
    change(published, "lstm", dim=6, n_layers=3)
    with pytest.raises(KeelError, match="lack RNN_0/RNN/MultiRNNCell/Cell2"):
        read(published)


def test_weights_that_the_options_do_not_account_for_are_refused(published: Path) -> None:
    change(published, "lstm", n_layers=1)
    message = r"tiny_weights.hdf5 contains RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/B, which the options do not describe"
    with pytest.raises(KeelError, match=message):
        read(published)
    change(published, "lstm", n_layers=2)
    read(published)
    with h5py.File(published / "tiny_weights.hdf5", "r+") as file:
        file["more/numbers"] = np.zeros(3)
    with pytest.raises(KeelError, match=r"contains more/numbers, which the options do not describe"):
        read(published)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(published: Path, value: float) -> None:
    with h5py.File(published / "tiny_weights.hdf5", "r+") as file:
        file["char_embed"][3, 1] = value
    message = r"tiny_weights.hdf5: char_embed contains NaN or infinity"
    with pytest.raises(KeelError, match=message):
        read(published)


def test_a_file_that_is_cut_short_or_missing_is_named(published: Path, tmp_path: Path) -> None:
    weights = published / "tiny_weights.hdf5"
    whole = weights.read_bytes()
    for part in (whole[: len(whole) // 2], b"no hdf5 at all", b""):
        weights.write_bytes(part)
        with pytest.raises(KeelError, match=r"tiny_weights.hdf5 is no valid hdf5 file"):
            read(published)
    weights.unlink()
    with pytest.raises(KeelError, match=r"one weights.hdf5, this one has none"):
        Model.load(published)
    weights.write_bytes(whole)
    shutil.copy(weights, published / "other_weights.hdf5")
    with pytest.raises(KeelError, match="several"):
        Model.load(published)
    (published / "other_weights.hdf5").unlink()
    (published / "tiny_options.json").unlink()
    with pytest.raises(KeelError, match=r"one options.json, this one has none"):
        Model.load(published)


@pytest.mark.parametrize(("text", "message"), [("{", "options.json"), ("[]", "options.json"), ("{}", "lack 'lstm'")])
def test_options_that_are_none_are_named(published: Path, text: str, message: str) -> None:
    (published / "tiny_options.json").write_text(text)
    with pytest.raises(KeelError, match=message):
        read(published)


def test_options_that_make_no_sense_are_named(published: Path) -> None:
    change(published, "lstm", dim="wide")
    with pytest.raises(KeelError, match=r"lstm\.dim"):
        read(published)
    change(published, "lstm", dim=6)
    change(published, "char_cnn", filters=[[3, 5]])
    with pytest.raises(KeelError) as caught:
        read(published)
    what = "filter widths are [3]; Keel's ELMo supports 1, 2, 3, ... characters only"
    assert str(caught.value) == f"{published / 'tiny_options.json'}: {what}"


def test_a_missing_h5py_is_one_sentence(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(KeelError, match=r"keel-nlp\[data\]"):
        read(published)
