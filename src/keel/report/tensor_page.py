"""Page of a tensor trace: step through all tensors, with shapes, formulas and heat maps of 8 bits."""

import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any
from xml.etree.ElementTree import Element

from keel.localization import language, translate
from keel.report.html_page import Page, page_asset, tag
from keel.report.tensor_figure import network_map, parts_of

KEYS = (
    ("← →", "previous, next tensor"),
    ("↑ ↓", "the same tensor, one layer up or down"),
    ("Page ↑ ↓", "previous, next step"),
)


def tensor_page(found: Mapping[str, Any]) -> Page:
    """Build the page from `TensorTrace.to_dict`."""
    text = f"{found['text']} / {found['second']}" if found["second"] else found["text"]
    steps = len(found["steps"])
    sizes = f"{len(found['tensors']):,} tensors{f' in {steps} steps' if steps > 1 else ''}"
    lead = f"{text}: {sizes}; {found['summary']}."
    page = Page(f"Tensors in {found['model']}", lead, layout="broad", style=page_asset("tensors.css"))
    page.add(_step_control(found))
    networks = dict.fromkeys(step["network"] for step in found["steps"])
    maps = [tag("div", _named(network_map(parts_of(found, name)), name), class_="network") for name in networks]
    page.add(
        tag(
            "div",
            tag("nav", id="list", aria_label=translate("Tensors of this step")),
            tag("section", *_tensor_view(), id="tensor", aria_live="polite"),
            tag("aside", *maps, tag("p", "", id="layer", class_="quiet"), tag("div", id="candidates")),
            class_="trace",
        )
    )
    if found["explanations"]:
        page.section("What Q, K and V are when the masked word is predicted")
    for is_list, lines in groupby(found["explanations"], key=lambda line: line.startswith("layer ")):
        if is_list:
            page.output(lines)
        else:
            for line in lines:
                page.text(line)
    names = translated_names(found)
    rows = [
        [*(names.get(each, each) for each in (kind["name"], _axes(kind, names), kind["formula"], kind["meaning"]))]
        for kind in found["kinds"]
    ]
    head = ("tensor", "shape", "formula", "meaning")
    page.table(head, rows, summary=f"All {len(rows)} kinds of tensors as a table", numeric=False)
    page.text(
        "Heat maps have 8 bits per cell, in the square root of the value; each picture says how exact they are. A cell "
        "of a larger tensor is the number of largest magnitude in its block. Python has the exact numbers: keel.trace."
    )
    page.phrases(
        within="{name}, layer {layer}",
        block="{axis} {first} to {last}",
        map="Heat map of {name}",
        place="tensor {number} of {count}",
        placed="tensor {number} of {count}, {title}",
        sources="computed from",
        numbers="min {low}, max {high}, mean {mean}, standard deviation {std}.",
        masked="{count} cells are minus infinity (masked).",
        exact="The heat map has 8 bits per cell, exact to {error}.",
        signs="Blue is positive, orange negative.",
        reduced="A cell is the number of largest magnitude in its block.",
        depth="layer {layer} of {layers}",
        before="In the step before it was {sizes}.",
        grown="In the step before it was {sizes}; {cached} of the keys come from the cache.",
        layer="layer {layer}",
        reads="reads {tokens}",
        cache="KV cache, {bytes} bytes:",
        chosen="The next step reads {token}: its id, not the distribution.",
        hidden="minus infinity: masked",
        bits="{number} (8 bits)",
    )
    page.script(page_asset("tensors.js"))
    page.data("names", json.dumps(names).replace("<", "\\u003c"))
    page.data("trace", json.dumps(found).replace("<", "\\u003c"))
    return page


def translated_names(found: Mapping[str, Any]) -> dict[str, str]:
    """Names and meanings of the trace in the user's language, where it has others; texts and tokens are not in it."""
    if language() == "en":
        return {}
    names = {text for kind in found["kinds"] for text in (kind["name"], kind["meaning"], kind["part"], *kind["axes"])}
    names |= {each for step in found["steps"] for each in (step["title"], *step["predictions"])}
    names |= {"head", "text"}
    shown = {name: translate(name) for name in sorted(names)}
    return {name: text for name, text in shown.items() if text != name}


def _axes(kind: Mapping[str, Any], names: Mapping[str, str]) -> str:
    return f"[{', '.join(names.get(axis, axis) for axis in kind['axes'])}]"


def _named(picture: Element, network: str) -> Element:
    picture.set("id", f"map-{network}")
    picture.set("data-network", network)
    return picture


def _step_control(found: Mapping[str, Any]) -> Element:
    """Buttons for tensors and, with several steps, a slider for them; what the step reads, caches and predicts."""
    count = len(found["steps"])
    keys = [part for name, what in KEYS[: 3 if count > 1 else 2] for part in (tag("kbd", name), f" {what}  ")]
    buttons = (("back", f"‹ {translate('previous')}"), ("forth", f"{translate('next')} ›"))
    control = tag("div", id="control")
    control.append(tag("p", *(tag("button", label, type="button", id=name) for name, label in buttons), class_="moves"))
    if count > 1:
        slider = tag("input", type="range", id="step", min=1, max=count, value=1, aria_label=translate("Step"))
        control.append(
            tag("p", tag("label", f"{translate('step')} ", slider), tag("output", "", id="step-name"), class_="moves")
        )
    control.append(tag("p", *keys, class_="quiet keys"))
    return tag("div", control, tag("div", id="cache"), id="stepping")


def _tensor_view() -> list[Element]:
    return [
        tag("p", "", id="place", class_="quiet"),
        tag("h2", "", id="name"),
        tag("p", "", id="shape"),
        tag("p", "", id="meaning"),
        tag("p", tag("code", "", id="formula")),
        tag("p", "", id="sources"),
        tag("p", "", id="change"),
        tag("div", id="picture"),
        tag("div", id="panels"),
        tag("p", "", id="numbers", class_="quiet"),
    ]
