"""Layers of a model: the weights of its scalar mix, and probing of each layer by a linear classifier."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, overload

from keel.api.model_loading import ModelSource, load_model
from keel.config import Doc, Ge, enforces_bounds
from keel.data.probing_data import ProbingData
from keel.data.probing_files import read_probing_data
from keel.errors import UsageError
from keel.events import OnEvent, ignore
from keel.explain.layers.layer_features import refuse_one_layer
from keel.explain.layers.layer_probing import probe_model
from keel.explain.layers.layer_weights import Layers, LayersByTask, layer_weights, layers_by_task
from keel.explain.layers.probe_curves import LayerProbes, ProbeCurve, percent_interval
from keel.localization import gettext_noop
from keel.metrics.bootstrap import Score
from keel.model import Model
from keel.report.charts import Bar, bars
from keel.report.html_page import Page, is_page, picture_file, write_figures, write_picture
from keel.report.layer_charts import LayerCurve, MixRow, ProbePanel, mix_chart, probe_chart

EXAMPLES = 10_000
ProbingSource = str | Path | Sequence[Mapping[str, Any]]
"""A file, or records with `text` (or `words`), `span1`, `span2` (optional) and `label`."""

TRAIN = (
    "Labelled data to train probes on: CoNLL-U, columns of words and tags, jsonl with text, span1, span2 (optional) "
    "and label, or WiC as published. For several files, repeat --train and --test."
)
TEST = "Labelled data to test probes on; default: a fifth of the training data, which is held out."
PROBE = (
    "Tasks. CoNLL-U: upos, xpos, feats, one feature such as Number, deprel, head (distance to the head), arc (relation "
    "of a word and its head); columns: NAME=3. A file of spans is one task. Default: all."
)

__all__ = ["layers", "probe_layers"]


@overload
def layers(model: ModelSource, *, out: str | Path | None = None, on_event: OnEvent = ignore) -> Layers: ...
@overload
def layers(
    model: Iterable[ModelSource], *, out: str | Path | None = None, on_event: OnEvent = ignore
) -> LayersByTask: ...
def layers(
    model: ModelSource | Iterable[ModelSource],
    *,
    out: Annotated[str | Path | None, Doc("Write the weights as a figure: .svg, .pdf, .png or .html.")] = None,
    on_event: OnEvent = ignore,
) -> Layers | LayersByTask:
    """The layer weights of a model that was fine-tuned with `mix` (ELMo's scalar mix), in `out` as a figure; those of
    several models, such as one per task, in one table and figure."""
    path = None if out is None else picture_file(out)
    if not isinstance(model, Model | str | Path):
        several = layers_by_task(load_model(each, on_event) for each in model)
        if path is not None:
            write_layers_by_task(path, several)
        return several
    known = load_model(model, on_event)
    found = layer_weights(known)
    if path is not None:
        chart = bars(
            [Bar(name=name, value=weight, highlighted=True) for name, weight in found.weights_by_name()], digits=3
        )
        caption = f"Softmax weights of the layers, which sum to 1; gamma {found.gamma:.3f}. {found.left_out}"
        write_figures(path, f"{known.card.title or known.system.name}: layer weights", [(chart, caption)])
    return found


def write_layers_by_task(path: str | Path, found: LayersByTask) -> Path:
    """Write the scalar mixes of several models as one figure: tasks down, layers across."""
    rows = [
        MixRow(
            f"{each.model} ({each.task})",
            dict(zip(each.layers.numbers, each.layers.weights, strict=True)),
            each.layers.gamma,
            each.layers.center_of_gravity,
        )
        for each in found.mixes
    ]
    caption = (
        "Softmax weights of the layers in the scalar mix of each model, which sum to 1; layer 0 are the embeddings. "
        "γ scales the mix; the center (dot) is the mean layer under the weights."
    )
    return write_figures(picture_file(path), "Layer weights by task", [(mix_chart(rows), caption)])


@enforces_bounds
def probe_layers(
    model: ModelSource,
    *,
    train: Annotated[ProbingSource | Sequence[str | Path], Doc(TRAIN, repeated=True)],
    test: Annotated[ProbingSource | Sequence[str | Path] | None, Doc(TEST, repeated=True)] = None,
    probe: Annotated[tuple[str, ...], Doc(PROBE)] = (),
    control: Annotated[
        bool, Doc("Control tasks: probes of random labels, one for each word (or span), and the selectivity.")
    ] = False,
    random: Annotated[bool, Doc("Also probe the same architecture with random weights.")] = False,
    examples: Annotated[
        int,
        Ge(1),
        Doc("Words (or spans) of each file at most, for training and for the test; larger files are sampled."),
    ] = EXAMPLES,
    seed: Annotated[int, Ge(0), Doc("Seed of samples, control tasks and random weights.")] = 0,
    out: Annotated[str | Path | None, Doc("Write the figure: .svg, .pdf, .png or .html.")] = None,
    on_event: OnEvent = ignore,
) -> LayerProbes:
    """Probing curves: the accuracy of a linear classifier on the frozen vectors of each layer (0: the embeddings) for
    labelled words, spans and pairs of spans.

    Every text is encoded once, for all layers and all tasks of its file. The vectors of one file are in memory: layers
    x spans of training and test x width x 2 bytes. Intervals resample the test texts.
    """
    path = None if out is None else picture_file(out)
    pairs = _pairs(train, test)
    known = load_model(model, on_event)
    refuse_one_layer(known)
    wanted = (probe,) if isinstance(probe, str) else tuple(probe)
    data = [read_probing_data(*pair, wanted, examples=examples, seed=seed, on_event=on_event) for pair in pairs]
    _refuse_unknown(wanted, data)
    found = probe_model(known, data, control=control, random=random, seed=seed, on_event=on_event)
    if path is not None:
        write_probes(path, found)
    return found


def _pairs(train: Any, test: Any) -> list[tuple[Any, Any]]:
    """The sources for training, each with that for its test."""
    trains, tests = (_sources(each) for each in (train, test))
    if test is None:
        return [(each, None) for each in trains]
    if len(trains) != len(tests):
        what = f"{len(trains)} for --train, {len(tests)} for --test"
        raise UsageError(f"the numbers of files differ ({what}): give each training file its test file")
    return [*zip(trains, tests, strict=True)]


def _sources(given: Any) -> list[Any]:
    several = isinstance(given, list | tuple) and len(given) > 0 and all(isinstance(each, str | Path) for each in given)
    return [*given] if several else [given]


def _refuse_unknown(wanted: Sequence[str], data: Sequence[tuple[ProbingData, ProbingData]]) -> None:
    """Refuse a task that no file has."""
    found = {name for train, _ in data for name in train.tasks}
    for each in wanted:
        name = each.partition("=")[0]
        if not {name, f"column {name}"} & found:
            known = "; ".join(f"{Path(train.source).name} has {', '.join(train.known)}" for train, _ in data)
            raise UsageError(f"--probe {each}: no file has this task ({known}): choose others")


def write_probes(path: str | Path, found: LayerProbes) -> Path:
    """Write the curves of all tasks as small multiples, to a picture or to a page with all numbers."""
    chart, title = probe_chart([_panel(each) for each in found.curves]), f"Layers of {found.model}"
    if not is_page(path):
        return write_picture(picture_file(path), chart, title)
    page = Page(
        title,
        "What a linear classifier reads from the frozen vectors of each layer; layer 0 are the embeddings.",
    )
    page.figure(chart, _caption(found))
    for curve in found.curves:
        page.section(curve.task)
        page.text(f"{_subtitle(curve)}; {curve.train:,} examples for training, {curve.test:,} for the test.")
        columns = {
            "accuracy": curve.scores, "control": curve.control, "selectivity": curve.selectivity,
            "random weights": curve.random,
        }  # fmt: skip
        shown = {name: scores for name, scores in columns.items() if scores is not None}
        rows = [
            [f"{layer}", *(_cell(scores[index]) for scores in shown.values()), f"{curve.l2[index]:.3g}"]
            for index, layer in enumerate(curve.layers)
        ]
        page.table(["layer", *shown, "L2"], rows, dense=True)
    return page.write(Path(path))


def _caption(found: LayerProbes) -> str:
    curves = found.curves
    parts = [f"Accuracy (%) of linear probes on each layer of {found.model}; bands are 95% intervals."]
    if any(each.control for each in curves):
        parts.append("Control task: a random label for each type of word or span.")
    if any(each.random for each in curves):
        parts.append("Random weights: the same architecture, not trained.")
    return " ".join(parts)


def _panel(curve: ProbeCurve) -> ProbePanel:
    given = {"task": curve.scores, "control task": curve.control, "random weights": curve.random}
    curves = {name: _layer_curve(scores) for name, scores in given.items() if scores is not None}
    return ProbePanel(curve.task, _subtitle(curve), curve.layers, curves, curve.majority)


def _layer_curve(scores: Sequence[Score]) -> LayerCurve:
    intervals = [each.interval for each in scores if each.interval is not None]
    return LayerCurve([each.value for each in scores], intervals if len(intervals) == len(scores) else ())


def _subtitle(curve: ProbeCurve) -> str:
    return f"{curve.classes:,} classes of {gettext_noop(curve.unit)}s, majority {curve.majority:.1%}"


def _cell(score: Score) -> str:
    return f"{100 * score.value:.1f}{percent_interval(score)}"
