"""Names, axes and meanings of traced tensors in Chinese: printed, as pages and as pictures."""

import re
from pathlib import Path

import pytest

import keel
from keel.api.tensor_tracing import write_trace_figure
from keel.explain.trace import (
    attention_kinds,
    encoder_recording,
    head_kinds,
    recurrent_kinds,
    seq2seq_recording,
    transformer_kinds,
)
from keel.explain.trace.tensor_trace import TensorKind, TensorTrace
from keel.localization import translate, using_language

TEXTS = ["the old film was good", "a quiet garden", "the film , the story", "good story"] * 8
KEPT = {"logits", "1"}
"""Names that are the same in Chinese."""
MODULES = (attention_kinds, encoder_recording, head_kinds, recurrent_kinds, seq2seq_recording, transformer_kinds)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[TensorTrace]:
    folder = tmp_path_factory.mktemp("models")
    once = {"steps": 1, "batch": 4, "device": "cpu"}
    shape = {"layers": 2, "width": 16, "head_dim": 8, "dropout": 0.0, "max_positions": 32, "sequence_length": 32}
    bert = keel.pretrain(keel.Bert(**shape), TEXTS, out=folder / "bert", **once)
    gpt = keel.pretrain(keel.Gpt(**shape), TEXTS, out=folder / "gpt", **once)
    return [keel.trace("the [MASK] film", model=bert), keel.trace("the old film", model=gpt, tokens=2)]


def kinds(traces: list[TensorTrace]) -> set[TensorKind]:
    constants = {each for module in MODULES for each in vars(module).values() if isinstance(each, TensorKind)}
    return constants | {tensor.kind for trace in traces for tensor in trace.tensors}


def test_every_name_axis_and_meaning_has_a_translation(traces: list[TensorTrace]) -> None:
    for kind in kinds(traces):
        for text in (kind.name, *kind.axes, kind.meaning):
            assert text in KEPT or translate(text, "zh") != text, text
        part = re.sub(r" \d$", "", kind.part)
        assert translate(part, "zh") != part


def test_printed_tensors_are_in_chinese(traces: list[TensorTrace]) -> None:
    with using_language("zh"):
        lines = traces[0].lines(layer=1)
    assert any(line.startswith("  查询  1 x 2 x 5 x 8  [批大小, 注意力头, 查询, 头维度]") for line in lines)
    assert any(line.startswith("  注意力权重") for line in lines)
    assert any(line.startswith("  query") for line in traces[0].lines(layer=1))


def test_a_page_keeps_identifiers_and_adds_their_names(traces: list[TensorTrace], tmp_path: Path) -> None:
    with using_language("zh"):
        page = write_trace_figure(tmp_path / "a.html", traces[0]).read_text(encoding="utf-8")
        picture = write_trace_figure(tmp_path / "a.svg", traces[0]).read_text(encoding="utf-8")
    assert '"name": "query"' in page  # the script compares names
    assert '"query": "\\u67e5\\u8be2"' in page
    assert ">查询</text>" in picture
    english = write_trace_figure(tmp_path / "b.html", traces[0]).read_text(encoding="utf-8")
    assert re.search(r'id="names">\{\}<', english)
