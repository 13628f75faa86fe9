"""Every member of FORMATS is detected, read, described and, where it is written, written without loss."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import keel
from keel.api.model_loading import load_vectors
from keel.cli import main
from keel.formats.registry import FORMATS, find_format, output_format
from keel.formats.stored_model import Format
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
