"""Every member of FORMATS is detected, read, described and, where it is written, written without loss."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import keel
from keel.api.model_loading import load_vectors
from keel.cli import main
from keel.formats.registry import FORMATS, find_format, output_format, read_outline
from keel.formats.stored_model import Format, Vectors
from keel.formats.vector_files import write_vectors
from keel.formats.vector_lines import Layout
from keel.model import Model
from keel.systems.fasttext import FastText

TEXTS = ["the boat lies at anchor", "the judge signs a letter", "every cook warms the bread"] * 4


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory, write_elmo: Callable[[Path], None]) -> dict[str, Path]:
    """A file or folder in every format."""
    folder = tmp_path_factory.mktemp("formats")
    settings = {"min_count": 1, "device": "cpu", "threads": 1, "held_out": 0.0}
    words = keel.pretrain("word2vec", TEXTS, out=folder / "words", width=8, epochs=1, **settings)
    keel.pretrain(FastText(width=8, buckets=50), TEXTS, out=folder / "grams", epochs=1, **settings)
    bert = keel.Bert(layers=1, width=16, head_dim=8, max_positions=32, sequence_length=32)
    keel.pretrain(bert, TEXTS, out=folder / "bert", steps=1, batch=2, device="cpu", vocabulary=100, held_out=0.0)
    foreign = folder / "foreign"
    Model.load(folder / "bert").save(foreign)
    config = json.loads((foreign / "config.json").read_text())
    del config["keel"]
    (foreign / "config.json").write_text(json.dumps(config))
    write_elmo(folder / "elmo")
    found = {"Keel folder": folder / "words", "Hugging Face folder": foreign, "ELMo folder": folder / "elmo"}
    for each in FORMATS:
        if each.name not in found and each.write is not None:
            source = folder / ("grams" if each.name == "fastText" else "words")
            found[each.name] = folder / f"{each.name.replace(' ', '-')}{each.suffixes[0]}"
            each.write(found[each.name], Model.load(source).to_stored(), False)
    assert words.card.steps
    return found


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_every_format(format: Format, samples: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = samples[format.name]
    assert [each.name for each in FORMATS if each.detect(path)] == [format.name]
    found = find_format(path)
    assert found is format
    model = Model.load(path)
    assert isinstance(model.system, format.system(path))
    if format.read_vectors:
        assert load_vectors(path).words == model.vector_space().words
    assert main(["info", str(path)]) == 0
    assert format.name in capsys.readouterr().out


@pytest.mark.parametrize("format", [each for each in FORMATS if each.write], ids=lambda format: format.name)
def test_every_format_that_is_written(format: Format, samples: dict[str, Path], tmp_path: Path) -> None:
    model = Model.load(samples[format.name])
    out = tmp_path / f"copy{(*format.suffixes, '')[0]}"
    assert output_format(out, model.system) is format
    keel.convert(samples[format.name], out)
    copy = Model.load(out)
    ours, theirs = model.vector_space(), copy.vector_space()
    assert ours.words == theirs.words
    assert np.array_equal(ours.matrix, theirs.matrix)
    with pytest.raises(keel.UsageError, match="overwrite"):
        keel.convert(samples[format.name], out)
    keel.convert(samples[format.name], out, overwrite=True)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_an_outline_has_everything_but_values(format: Format, samples: dict[str, Path]) -> None:
    path = samples[format.name]
    outline, model = Model.outline(path), Model.load(path, device="cpu")
    assert (outline.system, outline.label_names, outline.missing) == (model.system, model.label_names, model.missing)
    shapes, expected = ({name: tensor.shape for name, tensor in each.tensors().items()} for each in (outline, model))
    assert shapes == expected
    assert outline.encoder.vocab_size == model.encoder.vocab_size
    if format.outline is not None:
        assert all(tensor.is_meta for tensor in outline.encoder.parameters())


def test_an_outline_reads_no_weights(samples: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(samples["Keel folder"], tmp_path / "damaged")
    weights = folder / "model.safetensors"
    contents = bytearray(weights.read_bytes())
    contents[-1] ^= 1
    weights.write_bytes(contents)
    with pytest.raises(keel.KeelError, match="checksum"):
        Model.load(folder)
    assert Model.outline(folder).tensors().keys() == Model.load(samples["Keel folder"]).tensors().keys()


def test_an_outline_of_vectors_has_the_first_words(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(300)]
    layouts: dict[str, Layout] = {"a.vec": "text", "a.bin": "binary", "a.glove": "glove"}
    for name, layout in layouts.items():
        write_vectors(tmp_path / name, Vectors(words, np.ones((300, 4), np.float32)), layout=layout)
        outline = read_outline(tmp_path / name)
        assert outline.vocab_size == 300 + len(outline.tokenizer.special_ids)
        assert [outline.tokenizer.token_of(id) for id in range(len(outline.tokenizer))][-300:] == words
