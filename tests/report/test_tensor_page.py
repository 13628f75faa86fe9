"""The page and the overview of a tensor trace: true to the tensors, safe for any text, and usable by keys."""

import base64
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Browser

import keel
from keel.api.tensor_tracing import write_trace_figure
from keel.explain.trace.tensor_trace import TensorKind, TensorTrace, TracedTensor, TraceStep
from keel.model import Candidate
from keel.report.tensor_figure import network_map, overview_figure, parts_of

TEXTS = ["the old film was good", "a quiet garden", "the film , the story", "good story"] * 8
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x00"
SHAPE: dict[str, Any] = {"layers": 2, "width": 16, "head_dim": 8, "dropout": 0.0, "max_positions": 32}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TensorTrace]:
    folder = tmp_path_factory.mktemp("models")
    once: dict[str, Any] = {"steps": 2, "batch": 4, "device": "cpu"}
    bert = keel.pretrain(keel.Bert(**SHAPE, sequence_length=32), TEXTS, out=folder / "bert", **once)
    gpt = keel.pretrain(keel.Gpt(**SHAPE, sequence_length=32), TEXTS, out=folder / "gpt", **once)
    elmo = keel.Elmo(width=8, cell_size=12, character_filters=(4, 4), highway_layers=1, softmax_samples=0)
    recurrent = keel.pretrain(elmo, TEXTS, out=folder / "elmo", min_count=1, **once)
    pairs = [("a b", "x y"), ("b a", "y x"), ("b b", "y y")] * 4
    translator = keel.finetune(keel.Transformer(decoder_layers=2, **SHAPE), pairs, task="seq2seq", dev=None, **once)
    return {
        "bert": keel.trace("the [MASK] film", model=bert),
        "gpt": keel.trace("the old film", model=gpt, tokens=3),
        "elmo": keel.trace("the old film", model=recurrent),
        "transformer": keel.trace("a b", "x y", model=translator),
    }


def stored(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="trace">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.mark.parametrize("name", ["bert", "gpt", "elmo", "transformer"])
def test_a_page_has_all_tensors_to_eight_bits(name: str, traces: dict[str, TensorTrace], tmp_path: Path) -> None:
    trace = traces[name]
    html = write_trace_figure(tmp_path / "a.html", trace).read_text(encoding="utf-8")
    data = stored(html)
    assert len(data["tensors"]) == len(trace.tensors)
    assert [step["title"] for step in data["steps"]] == [step.title for step in trace.steps]
    for tensor, exact in zip(data["tensors"], trace.tensors, strict=True):
        assert data["kinds"][tensor["kind"]]["name"] == exact.kind.name
        if "values" in tensor:
            assert np.array_equal(tensor["values"], exact.values)
            continue
        picture = tensor["picture"]  # decoded as the script does
        cells = np.frombuffer(base64.b64decode(picture["data"]), np.uint8).astype(np.float64)
        shares = cells / 127 - 1 if picture["signed"] else cells / 254
        values = np.where(cells == 255, -np.inf, picture["limit"] * shares * np.abs(shares))
        if np.prod(exact.shape) == len(values):
            finite = np.isfinite(exact.values.ravel())
            assert np.array_equal(finite, cells != 255)
            difference = np.abs(values[finite] - exact.values.ravel()[finite]).max(initial=0)
            assert difference <= picture["error"] * 1.05 + 1e-4 * picture["limit"]
    for kind in data["kinds"]:
        assert kind["meaning"]
        assert kind["meaning"] in html.replace("&quot;", '"')


def test_the_page_runs_its_own_script_only(traces: dict[str, TensorTrace], tmp_path: Path) -> None:
    kind = TensorKind(name="token ids", axes=("batch", "tokens"), meaning="ids")
    tensor = TracedTensor(kind=kind, values=np.array([[1, 2]]))
    labels = {"tokens": [[EVIL, "b"]]}
    predictions = {EVIL: [Candidate(EVIL, 0.5)]}
    step = TraceStep(title="text", tensors=[tensor], labels=labels, read=[EVIL], predictions=predictions, chosen=EVIL)
    other = TraceStep(title="text", tensors=[tensor], labels=labels)
    found = TensorTrace(model="m", system="s", summary="", text=EVIL, steps=[step, other], explanations=[EVIL])
    html = write_trace_figure(tmp_path / "a.html", found).read_text(encoding="utf-8")
    assert html.count("<script") == html.count("</script>") == 4  # the trace, names, phrases and the program
    assert "<img" not in html
    assert "default-src 'none'" in html
    assert "https://" not in html
    assert stored(html)["steps"][0]["read"][0].startswith("</script>")
    svg = write_trace_figure(tmp_path / "a.svg", found).read_text(encoding="utf-8")
    assert "<script" not in svg
    ElementTree.fromstring(svg)


@pytest.mark.parametrize("name", ["bert", "gpt", "elmo", "transformer"])
def test_the_overview_names_every_kind_once_per_step_that_differs(name: str, traces: dict[str, TensorTrace]) -> None:
    data = traces[name].to_dict()
    picture = overview_figure(data)
    texts = [element.text for element in picture.iter("text")]
    for kind in data["kinds"]:
        assert any(text and text.rstrip("…") and kind["name"].startswith(text.rstrip("…")) for text in texts)
    for step in data["steps"]:
        assert any(step["title"] in (text or "") for text in texts)


def test_the_map_has_the_parts_in_order(traces: dict[str, TensorTrace]) -> None:
    data = traces["transformer"].to_dict()
    encoder = [part.label for part in parts_of(data, "encoder")]
    decoder = [part.label for part in parts_of(data, "decoder")]
    norm = "add & norm"
    assert encoder == ["embeddings", "self-attention", norm, "feed-forward", norm, "encoder output"]
    between = ["masked self-attention", norm, "cross-attention", norm, "feed-forward", norm]
    assert decoder == ["embeddings", *between, "output"]
    drawn = network_map(parts_of(data, "decoder"))
    boxes = {each.get("data-part"): float(each[0].get("y", "")) for each in drawn.iter("g") if each.get("data-part")}
    assert len(boxes) == len(decoder)
    assert list(boxes.values()) == sorted(boxes.values(), reverse=True)
    residuals = [each for each in drawn.iter("polyline") if each.get("class") == "wire strong"]
    assert len(residuals) == 3


def test_long_traces_fit_a_page(tmp_path: Path) -> None:
    kind = TensorKind(name="weights", axes=("batch", "heads", "queries", "keys"), meaning="x" * 100)
    random = np.random.default_rng(0).normal(size=(1, 16, 64, 64)).astype(np.float32)
    step = TraceStep(title="", tensors=[TracedTensor(kind=kind, values=random) for _ in range(400)], labels={})
    found = TensorTrace(model="m", system="s", summary="", text="", steps=[step])
    assert write_trace_figure(tmp_path / "a.html", found).stat().st_size < 5_000_000


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tensors_and_steps_by_keys(
    browser: Browser, traces: dict[str, TensorTrace], tmp_path: Path, scheme: Any
) -> None:
    trace = traces["gpt"]
    path = write_trace_figure(tmp_path / "a.html", trace)
    page = browser.new_page(color_scheme=scheme)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda each: problems.append(each.text) if each.type == "error" else None)
    page.on("request", lambda each: None if each.url.startswith("file:") else problems.append(each.url))
    page.goto(path.as_uri())
    count = len(trace.steps[0].tensors)
    for number in range(count):
        assert page.inner_text("#place").startswith(f"tensor {number + 1} of {count}")
        assert page.inner_text("#name") == trace.steps[0].tensors[number].name
        assert json.dumps(list(trace.steps[0].tensors[number].shape)) in page.inner_text("#shape")
        page.keyboard.press("ArrowRight")
    assert page.inner_text("#place") == f"tensor 1 of {len(trace.steps[1].tensors)}, decoding step 1"
    page.keyboard.press("PageUp")
    page.click("#list button:has-text('attention weights')")
    assert page.inner_text("#name") == "attention weights, layer 1"
    page.keyboard.press("ArrowUp")
    assert page.inner_text("#name") == "attention weights, layer 2"
    page.click("#panels button:nth-child(2)")
    weights = trace.tensor("attention weights", layer=2).values[0, 1]
    box = page.locator("#picture canvas").bounding_box()
    assert box is not None
    for row, column in ((3, 1), (1, 3)):
        x, y = ((place + 0.5) / len(weights) for place in (column, row))
        page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y)
        where, value = page.inner_text("#tip").splitlines()
        names = [name.strip() for name in trace.steps[0].labels["keys"][0]]
        assert where == f"head 2 · {names[row]} · {names[column]}"
        assert float(value.split()[0]) == pytest.approx(weights[row, column], abs=0.01)
    page.keyboard.press("PageDown")
    assert page.inner_text("#name") == "attention weights, layer 2"
    read = len(trace.steps[0].read)
    assert f"[1, 2, 1, {read + 1}]" in page.inner_text("#shape")
    assert f"[1, 2, {read}, {read}]" in page.inner_text("#change")
    assert page.locator("#cache span.cached").count() == trace.steps[1].cached == read
    assert page.locator("#candidates tr.chosen").count() == 1
    again = browser.new_page()
    again.goto(page.url)
    assert again.inner_text("#name") == "attention weights, layer 2"
    page.click("[data-part='feed-forward']")
    assert page.inner_text("#name") == "feed-forward hidden, layer 2"
    assert not problems
