"""Figures are complete XML, have no overlapping labels, and show the numbers of the configuration."""

import json
import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest
import torch

import keel
from keel.api.figures import FIGURES
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.model import Model
from keel.nn.convolution import ConvolutionFilters
from keel.nn.recurrent import RecurrentLayers
from keel.nn.transformer_blocks import TransformerBlock
from keel.report.charts import FONT, text_width
from keel.report.diagram import SIZES
from keel.report.figures.convolution_figures import window_positions
from keel.report.figures.figure import Figure
from keel.report.figures.size_figures import SIZES as PUBLISHED
from keel.systems import LINEAGE, SYSTEMS
from keel.systems.system import System

WORDS = Tokenizer.from_words(["a", "fine", "day", "it", "rains", "今天", "天气", "很", "好"])
BLOCKS: dict[str, Any] = {"layers": 3, "width": 48, "head_dim": 16}
BERT = keel.Bert(**BLOCKS, sequence_length=128, max_positions=512)
GPT = keel.Gpt(**BLOCKS, sequence_length=64, max_positions=64)
TEXT = "今天天气很好 it rains"
MODELS: dict[str, list[System]] = {
    "rnn": [keel.Rnn(width=8), keel.Rnn(width=8, cell="gru", layers=7, bidirectional=True), keel.Ulmfit(width=8)],
    "cnn": [keel.Cnn(width=9, kernel_sizes=(2,), filters=3), keel.Cnn(kernel_sizes=(1, 2, 3, 4, 5, 6, 7))],
    "window": [keel.Cnn(kernel_sizes=(2, 4))],
    "block": [BERT, GPT, keel.Gpt(**BLOCKS, pre_norm=False), keel.Electra(**BLOCKS)],
    "networks": [BERT, GPT, keel.Elmo.sized("tiny"), keel.Bert(layers=1, width=64), keel.Electra(**BLOCKS)],
    "input": [BERT, GPT, keel.Transformer(**BLOCKS)],
    "units": [BERT, keel.Ernie(**BLOCKS)],
    "heads": [BERT, keel.Electra(**BLOCKS)],
    "gpt-inputs": [GPT],
    "sizes": [BERT, keel.Rnn(width=8)],
}


def new(system: System) -> Model:
    return Model(system=system, encoder=system.build_encoder(len(WORDS)), tokenizer=WORDS)


def units_figure(folder: Path, text: str = "天气很好 it rains a fine day", **options: Any) -> Figure:
    """The figure of units with a phrase and a name."""
    for name, content in (("phrases", "it rains\n很好\n"), ("names", "天气很\n")):
        (folder / f"{name}.txt").write_text(content, encoding="utf-8")
    sources = {"phrases": folder / "phrases.txt", "entities": folder / "names.txt"}
    return keel.figure("units", model=new(keel.Ernie(**BLOCKS)), text=text, **sources, **options)


def cases() -> dict[str, Callable[..., Figure]]:
    """Every figure, without a model and with models and texts."""

    def case(name: str, system: System | None = None, **texts: str) -> Callable[..., Figure]:
        return lambda **options: keel.figure(name, model=None if system is None else new(system), **texts, **options)

    found = {name: case(name) for name in FIGURES if name not in ("input", "units")}
    for name, systems in MODELS.items():
        for system in systems:
            texts = {"text": TEXT} if "text" in FIGURES[name].options else {}
            found[f"{name} {system.name} {len(found)}"] = case(name, system, **texts)
    found["input of a pair"] = case("input", BERT, text=TEXT, second="a fine <day> &")
    found["input of many tokens"] = case("input", keel.Bert(**BLOCKS, sequence_length=512), text="今天天气很好" * 200)
    found["units of listed names"] = lambda **options: units_figure(options["out"].parent, **options)
    found["units of many tokens"] = case("units", keel.Ernie(**BLOCKS, sequence_length=300), text="今天天气很好" * 60)
    for name in ("rnn", "cnn", "window"):
        found[f"{name} of a text"] = case(name, text="supercalifragilisticexpialidocious 自然语言处理 iiii WWWW")
    return found


CASES = cases()


def labels(svg: Element) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Each text with its box: left, top, right, bottom."""
    found = []
    for text in svg.iter("{http://www.w3.org/2000/svg}text"):
        content = "".join(text.itertext())
        size = next((pixels for kind, pixels in SIZES.items() if kind and kind in text.get("class", "").split()), FONT)
        width = text_width(content) * size / FONT
        x, baseline = float(text.get("x", 0)), float(text.get("y", 0))
        left = {"start": x, "middle": x - width / 2, "end": x - width}[text.get("text-anchor", "start")]
        if content:
            found.append((content, (left, baseline - 0.8 * size, left + width, baseline + 0.2 * size)))
    return found


def overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("name", CASES)
def test_a_figure_is_a_picture_without_overlapping_labels(name: str, tmp_path: Path) -> None:
    found = CASES[name](out=tmp_path / "figure.svg")
    svg = fromstring((tmp_path / "figure.svg").read_text(encoding="utf-8"))
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    texts = labels(svg)
    assert len(texts) > 5
    assert [pair for pair in combinations(texts, 2) if overlap(pair[0][1], pair[1][1])] == []
    left, top, width, height = map(float, svg.get("viewBox", "").split())
    boxes = [
        (x, y, x + float(box.get("width", 0)), y + float(box.get("height", 0)))
        for box in svg.iter("{http://www.w3.org/2000/svg}rect")
        if "node" in box.get("class", "")
        for x, y in [(float(box.get("x", 0)), float(box.get("y", 0)))]
    ]
    for text, (one, above, other, below) in texts:
        assert left <= one < other <= left + width, text
        assert top <= above < below <= top + height, text
        for box in boxes:  # a label is in a box or outside it
            inside = box[0] - 0.2 <= one and other <= box[2] + 0.2 and box[1] - 0.2 <= above and below <= box[3] + 0.2
            assert inside or not overlap((one, above, other, below), box), text
    assert json.loads(json.dumps(found.to_dict()))["title"] == found.title
    assert all(len(line) <= 80 for line in found.lines())


def visible_text(figure: Figure) -> str:
    return " ".join("".join(text.itertext()) for text in figure.picture.iter("text"))


def test_parameters_are_those_of_transformers() -> None:
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, OpenAIGPTConfig, OpenAIGPTModel

    def bert(layers: int, width: int) -> torch.nn.Module:
        heads: dict[str, Any] = {"num_attention_heads": width // 64, "intermediate_size": 4 * width}
        return BertModel(BertConfig(num_hidden_layers=layers, hidden_size=width, **heads))

    def gpt2(layers: int, width: int) -> torch.nn.Module:
        return GPT2Model(GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64))

    figure = keel.figure("sizes")
    with torch.device("meta"):
        networks = {
            "BERT-tiny": bert(2, 128),
            "BERT-base": bert(12, 768),
            "BERT-large": bert(24, 1024),
            "GPT": OpenAIGPTModel(OpenAIGPTConfig()),
            "GPT-2 small": gpt2(12, 768),
            "GPT-2 XL": gpt2(48, 1600),
        }
    for name, network in networks.items():
        count = sum(weight.numel() for weight in network.parameters())
        assert figure.numbers[name] == count
        assert f"{name} " in visible_text(figure)
        assert f"{count:,}" in visible_text(figure)
    assert figure.numbers["ELMo original"] == pytest.approx(93.6e6, rel=1e-3)
    assert figure.numbers["GPT-3"] == pytest.approx(175e9, rel=3e-3)
    assert set(figure.numbers) == {size.name for size in PUBLISHED}


def test_figures_of_a_model_show_its_sizes() -> None:
    model = new(BERT)
    total = sum(weight.numel() for weight in model.encoder.parameters())
    block = sum(weight.numel() for weight in model.encoder.blocks()[0].parameters())
    for name in ("block", "networks", "sizes"):
        text = visible_text(keel.figure(name, model=model))
        assert f"{total:,}" in text
        assert re.search(r"\b48\b", text), name
    text = visible_text(keel.figure("block", model=model))
    assert f"{block:,}" in text
    assert "× 3" in text
    assert "3 heads of 16" in text
    assert "48 → 192 → 48" in text


def test_the_parameters_of_heads_are_those_of_tasks() -> None:
    examples = [("a fine day", "good"), ("it rains", "bad"), ("a day", "so so")] * 2
    small = keel.Bert(layers=1, width=16, head_dim=8, sequence_length=16)
    tuned = keel.finetune(small, examples, task="classify", epochs=1)
    assert tuned.task is not None
    head = tuned.task.get_submodule("classifier")
    figure = keel.figure("heads", model=tuned)
    assert figure.numbers["classify head parameters"] == sum(weight.numel() for weight in head.parameters()) == 51
    assert "linear 16 × 3: 51 parameters" in visible_text(figure)
    pretraining = small.build_objective(small.build_encoder(len(WORDS)), WORDS)
    own = [pretraining.transform, pretraining.norm]
    expected = sum(weight.numel() for module in own for weight in module.parameters()) + pretraining.bias.numel()
    assert keel.figure("heads", model=new(small)).numbers["pretrain head parameters"] == expected


def test_recurrent_parameters_do_not_depend_on_the_words() -> None:
    figures = [keel.figure("rnn", text=text) for text in ("a day", "a fine day it rains")]
    assert {figure.numbers["recurrent parameters"] for figure in figures} == {400 * 400 * 2 + 2 * 400}
    assert all("320,800 parameters" in visible_text(figure) for figure in figures)
    layers = RecurrentLayers("lstm", 8, 8, 2)
    count = sum(weight.numel() for weight in layers.parameters())
    assert keel.figure("rnn", model=new(keel.Rnn(width=8))).numbers["recurrent parameters"] == count


def test_filter_parameters_are_those_of_the_encoder() -> None:
    model = new(keel.Cnn(width=9, kernel_sizes=(2, 5), filters=3))
    weights = dict(model.encoder.named_parameters())
    count = sum(weight.numel() for name, weight in weights.items() if name.startswith("filters."))
    figure = keel.figure("cnn", model=model)
    assert figure.numbers["filter parameters"] == count == (2 * 9 + 1) * 3 + (5 * 9 + 1) * 3
    assert "138 parameters" in visible_text(figure)


@pytest.mark.parametrize(("kernel_size", "layers"), [(3, 1), (3, 3), (4, 1), (4, 2), (5, 2)])
def test_windows_are_where_convolutions_have_a_gradient(kernel_size: int, layers: int) -> None:
    torch.manual_seed(0)
    words = torch.randn(1, 15, 4, requires_grad=True)
    vectors = words
    for _ in range(layers):
        vectors = ConvolutionFilters(4, {kernel_size: 4})(vectors)
    vectors[0, 8].sum().backward()
    assert words.grad is not None
    seen = words.grad[0].abs().sum(-1).nonzero()[:, 0].tolist()
    assert [*window_positions(8, kernel_size, layers, 15)[0]] == seen


def test_the_counts_of_the_window_figure_are_measured() -> None:
    numbers = keel.figure("window").numbers
    torch.manual_seed(0)
    networks: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "Recurrent network": lambda x: RecurrentLayers("rnn", 8, 8, 1)(x, torch.tensor([11]))[0][-1],
        "Self-attention": lambda x: TransformerBlock(**keel.Bert(width=8, head_dim=4).block_settings)(x, None),
    }
    for name, network in networks.items():
        words = torch.randn(1, 11, 8, requires_grad=True)
        network(words)[0, 7, 0].backward()  # the sum over a normed vector is constant
        assert words.grad is not None
        assert numbers[f"seen: {name}"] == int((words.grad[0].abs().sum(-1) > 0).sum())


def test_the_family_tree_has_all_systems_and_edges() -> None:
    figure = keel.figure("family")
    texts = visible_text(figure).split()
    assert set(SYSTEMS) <= set(texts)
    assert {str(system.year) for system in SYSTEMS.values()} <= set(texts)
    assert len(list(figure.picture.iter("path"))) == len(LINEAGE)


def test_the_figure_of_tasks_has_a_dot_for_each_supported_one() -> None:
    figure = keel.figure("tasks")
    assert figure.numbers["seq2seq systems"] == ["seq2seq", "transformer"]
    supported = sum(len(found) for found in figure.numbers.values())
    filled = [dot for dot in figure.picture.iter("circle") if "fill0" in dot.get("class", "")]
    assert len(filled) == supported


def test_the_input_of_a_figure_is_there_for_programs() -> None:
    found = keel.figure("input", model=new(BERT), text="a fine day", second="今天").to_dict()
    assert found["input"]["tokens"] == ["[CLS]", "a", "fine", "day", "[SEP]", "今天", "[SEP]"]
    assert found["input"]["segments"] == [0, 0, 0, 0, 0, 1, 1]


def test_units_of_a_text_and_their_masks_are_there_for_programs(tmp_path: Path) -> None:
    found = units_figure(tmp_path).to_dict()["units"]
    assert found["tokens"] == ["天气", "很", "好", "it", "rains", "a", "fine", "day"]
    units = {name: level["units"] for name, level in found["levels"].items()}
    assert units == {
        "token": ["天气", "很", "好", "it", "rains", "a", "fine", "day"],
        "word": ["天气", "很", "好", "it", "rains", "a", "fine", "day"],
        "phrase": ["天气", "很好", "it rains", "a", "fine", "day"],
        "entity": ["天气很", "好", "it rains", "a", "fine", "day"],
    }
    for level in found["levels"].values():
        assert any(level["masked"])
        assert [shown == token for shown, token in zip(level["shown"], found["tokens"], strict=True)].count(
            False
        ) <= sum(level["masked"])
    repeated = "a fine day it rains " * 60
    levels = units_figure(tmp_path, text=repeated).to_dict()["units"]["levels"]
    shares = [sum(level["masked"]) / len(level["masked"]) for level in levels.values()]
    assert shares == pytest.approx([0.15] * 4, abs=0.03)
    assert {shown for level in levels.values() for shown in level["shown"]} >= {"[MASK]", "a", "fine"}


def test_units_of_a_pretrained_model_are_those_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("new york\n")
    text = "the mayor of new york met the mayor of los angeles . " * 3
    settings: dict[str, Any] = {"layers": 1, "width": 16, "head_dim": 16, "max_positions": 64, "sequence_length": 32}
    keel.pretrain(
        keel.Ernie(**settings),
        [text] * 4,
        out=tmp_path / "m",
        train=keel.Train(steps=1, batch=2, device="cpu"),
        text=keel.TextSettings(phrases=1, entities=str(tmp_path / "names.txt"), vocabulary=100, tokenizer="words"),
    )
    (tmp_path / "m" / "run" / "phrases.txt").write_text("los angeles\n")
    events: list[dict[str, Any]] = []
    found = keel.figure("units", model=tmp_path / "m", text="in new york", on_event=events.append).to_dict()["units"]
    assert found["levels"]["entity"]["units"] == ["in", "new york"]
    assert [event["text"] for event in events] == [
        f"entities: {tmp_path / 'names.txt'}, of the model's pre-training",
        f"phrases: {tmp_path / 'm' / 'run' / 'phrases.txt'}, of the model's pre-training",
    ]
    (tmp_path / "names.txt").unlink()
    events.clear()
    found = keel.figure("units", model=tmp_path / "m", text="in new york", on_event=events.append).to_dict()["units"]
    assert "entity" not in found["levels"]
    missing = f"{tmp_path / 'names.txt'}, the entities of the model's pre-training, is not there: give it by entities"
    assert events[0]["text"] == missing


def test_user_text_is_escaped_and_shown(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_words(["<script>", "alert", "今天"])
    model = Model(system=BERT, encoder=BERT.build_encoder(len(tokenizer)), tokenizer=tokenizer)
    page = tmp_path / "page.html"
    keel.figure("rnn", text="<script> 今天", out=page)
    keel.figure("input", model=model, text="今天", second="alert", out=tmp_path / "input.html")
    assert "<script>" not in page.read_text(encoding="utf-8")
    assert "今天" in page.read_text(encoding="utf-8")
    assert "alert" in (tmp_path / "input.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("lenet", {}, "there is no figure 'lenet'"),
        ("family", {"text": "x"}, "does not depend on text"),
        ("heads", {"model": GPT}, "this is a gpt"),
        ("gpt-inputs", {"model": BERT}, "this is a bert"),
        ("block", {"model": keel.Rnn(width=8)}, "this is a rnn"),
        ("networks", {"model": keel.Rnn(width=8)}, "this is a rnn"),
        ("rnn", {"model": BERT}, "this is a bert"),
        ("cnn", {"model": BERT}, "this is a bert"),
        ("input", {"model": BERT}, "needs a text"),
        ("rnn", {"text": "word " * 40}, "2 to 16 words, not 40"),
        ("sizes", {"out": "sizes.gif"}, r"must end in \.svg"),
    ],
)
def test_what_cannot_be_shown_is_refused(name: str, options: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {key: new(value) if isinstance(value, System) else value for key, value in options.items()}
    with pytest.raises(UsageError, match=sentence):
        keel.figure(name, **given)
