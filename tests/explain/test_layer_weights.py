"""The learned mix as somebody reads it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keel.api.finetuning import finetune
from keel.api.layers import layers
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.explain.layers.layer_weights import Layers, LayersByTask, TaskMix, layer_weights
from keel.localization import using_language
from keel.model import Model
from keel.systems.rnn import Rnn
from keel.systems.ulmfit import Ulmfit
from keel.text_table import cell_len

EXAMPLES = [("a fine day", "good"), ("an awful day", "bad")] * 4


def test_weights_stand_beside_bars() -> None:
    lines = Layers([0.25, 0.75], 1.5, [0, 1]).lines()
    assert lines[0].split() == ["embeddings", "0.250", "#" * 10]
    assert lines[1].split() == ["layer", "1", "0.750", "#" * 30]
    assert lines[2:] == [f"{'gamma':>10}  1.500", f"{'center':>10}  0.75"]
    assert Layers([0.25, 0.75], 1.5, [0, 1]).brief() == "embeddings 0.250, layer 1 0.750; gamma 1.500"


@pytest.mark.parametrize(
    ("numbers", "names"),
    [([0, 2], "layer 1"), ([0, 3], "layer 1, layer 2"), ([1, 2], "embeddings")],
)
def test_layers_that_are_not_in_the_mix_are_named_with_it(numbers: list[int], names: str) -> None:
    layers, sentence = Layers([0.25, 0.75], 1.5, numbers), f"of another width, so not in the mix: {names}"
    assert layers.brief().endswith(f"gamma 1.500 ({sentence})")
    assert layers.lines()[-1] == sentence


def test_layers_keep_their_numbers_where_those_of_another_width_are_left_out() -> None:
    sizes: dict[str, Any] = {"width": 8, "layers": 3, "bptt": 8}
    for hidden, numbers in ((12, [0, 3]), (8, [0, 1, 2, 3])):
        system, tokenizer = (
            Ulmfit(**sizes, hidden_size=hidden),
            Tokenizer.from_words(["a", "an", "fine", "awful", "day"]),
        )
        start = Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)
        model = finetune(start, EXAMPLES, dev=None, epochs=1, mix=True, device="cpu", progress=False)
        found = layer_weights(model)
        assert found.numbers == numbers
        assert len(found.weights) == len(numbers)
        assert found.to_dict()["layers"] == numbers
        lines = found.lines()
        assert lines[len(numbers) - 1].split()[:2] == ["layer", "3"]
        assert ("another width" in lines[-1]) == (hidden != 8)
        top, third = (model.encode(["a fine day"], layer=layer, pool="none")[0].vectors for layer in (-1, 3))
        assert (top == third).all()
        with pytest.raises(UsageError, match=r"there is no layer 4: this model has 0 \(embeddings\) to 3"):
            model.encode(["a day"], layer=4)
        for layer in (1, -2):
            if hidden == 8:
                assert model.encode(["a day"], layer=layer).shape == (1, 8)
                continue
            with pytest.raises(UsageError, match=rf"^layer {layer} has another width .*: choose one of 0, 3$"):
                model.encode(["a day"], layer=layer)


def test_center_of_gravity_is_the_mean_layer_under_the_weights() -> None:
    assert Layers([0.5, 0.0, 0.5], 1.0, [0, 1, 2]).center_of_gravity == 1.0
    assert Layers([0.5, 0.5], 1.0, [0, 3]).to_dict()["center_of_gravity"] == 1.5


def test_several_models_are_one_table_and_one_figure(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dev": None, "epochs": 1, "mix": True, "device": "cpu", "progress": False}
    words = [(text.split(), ["X", *"Y" * len(text.split()[1:])]) for text, _ in EXAMPLES]
    small = finetune(Rnn(width=8, layers=1), EXAMPLES, **settings)
    large = finetune(Rnn(width=8, layers=2), words, task="tag", **settings)
    for model in (small, large):
        model.card = replace(model.card, title="rnn")
    found = layers([small, large], out=tmp_path / "mixes.svg")
    first, second = found.to_dict()["tasks"]
    assert (first["model"], first["task"], first["layers"]) == ("rnn", "classify", [0, 1])
    assert (second["model"], second["task"], second["layers"]) == ("rnn #2", "tag", [0, 1, 2])
    assert second["weights"] == layer_weights(large).weights
    rows = [line.split() for line in found.lines()[:6]]
    assert [row[0] for row in rows] == ["layer", "0", "1", "2", "gamma", "center"]
    assert rows[3][1:] == ["-", f"{second['weights'][2]:.3f}"]  # the smaller model has no layer 2
    picture = (tmp_path / "mixes.svg").read_text(encoding="utf-8")
    shown = re.findall(r"<title>(rnn[^<]*), layer (\d): ([\d.]+)</title>", picture)
    assert [(name, int(layer)) for name, layer, _ in shown] == [
        *(("rnn (classify)", layer) for layer in range(2)),
        *(("rnn #2 (tag)", layer) for layer in range(3)),
    ]
    assert [weight for _, _, weight in shown] == [f"{s:.3f}" for each in (first, second) for s in each["weights"]]


def test_several_models_need_a_mix_each() -> None:
    settings: dict[str, Any] = {"dev": None, "epochs": 1, "device": "cpu", "progress": False}
    mixed, plain = (finetune(Rnn(width=8), EXAMPLES, mix=mix, **settings) for mix in (True, False))
    with pytest.raises(UsageError, match="no scalar mix"):
        layers([mixed, plain])
    with pytest.raises(UsageError, match="empty"):
        layers([])


def test_model_without_scalar_mix_is_refused() -> None:
    model = finetune("onehot", EXAMPLES, dev=None, epochs=1)
    with pytest.raises(UsageError, match="mix"):
        layer_weights(model)


def test_lines_are_in_the_users_language() -> None:
    found = Layers([0.25, 0.75], 1.0, [0, 1])
    english = found.lines()
    assert english[0] == f"embeddings  0.250  {'#' * 10}"
    with using_language("zh"):
        chinese, table = found.lines(), LayersByTask([TaskMix("a", "tag", found)]).lines()
    assert [line.split()[0] for line in chinese] == ["嵌入", "第", "gamma", "重心"]
    assert len({cell_len(line[: line.index("0.")]) for line in chinese[:2]}) == 1  # aligned on a terminal
    assert table[0].split() == ["层", "a"]
    assert table[-1] == "第 0 层：嵌入；重心：加权平均的层号"
