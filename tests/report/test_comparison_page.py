"""The report of a comparison: complete, self-contained, and without overlapping labels."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np
import pytest

from keel.data.examples import Examples, read_examples
from keel.localization import using_language
from keel.metrics.comparison_results import Cell, Column, Comparison, PretrainingCost, SeedResult
from keel.metrics.item_scores import ItemScores
from keel.metrics.significance import SystemResult, compare_pairs
from keel.report.charts import FONT, text_width
from keel.report.comparison_charts import NARROW, cost_chart, learning_curves, ranking_chart, verdict_matrix
from keel.report.comparison_files import latex_table, write_comparison
from keel.report.comparison_page import _case
from keel.report.comparison_table import comparison_lines

ROWS = (
    *("onehot", "fasttext", "word2vec", "glove.6B.50d.txt", "elmo:tiny", "gpt:tiny", "bert:tiny", "electra:small"),
    *("a-model-folder-with-a-very-long-name-v2.1-final", "cnn", "中文模型", "a & b_<c>"),
)
Make = Callable[..., Comparison]


@pytest.fixture
def make() -> Make:
    def make(rows: int, sizes: tuple[int, ...] = (100,), gap: float = 0.02, failed: str = "") -> Comparison:
        rng = np.random.default_rng(rows)
        pairs = [
            ("房间很干净，<b>早餐</b>也不错。", "好评") if n % 2 else ("隔音很差，非常失望。", "差评")
            for n in range(300)
        ]
        examples: Examples = read_examples(pairs, pair=False)
        columns = [
            Column(name=name, task=0, part=part, examples=examples, trained_on=100)
            for name, part in (("hotels", "test"), ("hotels -> films", "transfer"))
        ]
        p, cells = rng.beta(3, 1, 300), []
        for number, row in enumerate(ROWS[:rows]):
            for size_number, size in enumerate(sizes):
                chance = np.clip(p - 0.2 + gap * number + 0.1 * size_number, 0, 1)
                correct = [rng.random(300) < chance for _ in range(3)]
                seeds = [_seed_result(number, right, examples) for right in correct]
                cost = PretrainingCost(seconds=60.0, epochs=0.5, steps=100) if ":" in row else None
                for column in columns:
                    good = Cell(row=row, column=column, size=size, seeds=seeds, pretraining=cost)
                    bad = Cell(row=row, column=column, size=size, error="out of memory")
                    cells.append(bad if row == failed else good)
        return Comparison(rows=ROWS[:rows], columns=tuple(columns), cells=tuple(cells), notes=("3 seeds",))

    return make


def _seed_result(number: int, right: np.ndarray, examples: Examples) -> SeedResult:
    items = {part: ItemScores.ratio("accuracy", right, None) for part in ("test", "transfer")}
    other = {"好评": "差评", "差评": "好评"}
    guess = [label if ok else other[label] for label, ok in zip(examples.values, right, strict=True)]
    return SeedResult(
        seed=0,
        items=items,
        predicted={"test": guess, "transfer": guess},
        seconds=1.0 + number,
        epochs=3.0,
        steps=10,
        parameters=10**number,
        peak_memory=10**8,
        texts_per_second=1000.0,
    )


def test_all_files_are_written_and_the_page_needs_no_other(tmp_path: Path, make: Make) -> None:
    comparison = make(12, sizes=(20, 100), failed="cnn")
    page = write_comparison(comparison, tmp_path).read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=|url\(|@import|https?://""", page)
    for title in ("Ranking", "Which differences are real", "Cost against quality", "Learning curves", "disagree"):
        assert page.count(f"{title}") >= 2  # for both test sets
    assert "&lt;b&gt;早餐&lt;/b&gt;" in page
    assert "out of memory" in page
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert sum(line["kind"] == "cell" for line in lines) == 12 * 2 * 2
    assert sum(line["kind"] == "test" for line in lines) == 2 * 11 * 10 / 2
    with open(tmp_path / "results.csv", encoding="utf-8") as file:
        table = [*csv.DictReader(file)]
    assert len(table) == 48
    best = comparison.ranking(comparison.columns[0])[0]
    row = next(each for each in table if each["row"] == best.row and each["train_size"] == "100")
    assert float(row["score"]) == pytest.approx(best.score.value, abs=1e-6)
    assert "a \\& b\\_\\textless{}c\\textgreater{}" in (tmp_path / "results.tex").read_text(encoding="utf-8")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}-{number}.svg" for name in ("ranking", "cost", "learning-curves") for number in (1, 2)
    }


@pytest.mark.parametrize("rows", [2, 3, 12])
def test_no_labels_of_a_chart_overlap(rows: int, make: Make) -> None:
    comparison = make(rows, sizes=(20, 100))
    column = comparison.columns[0]
    ranked = comparison.ranking(column)
    for width in (720, NARROW):
        charts = [ranking_chart(ranked, width), cost_chart(ranked, width), learning_curves(comparison, column, width)]
        for chart in charts:
            boxes = [_box(text) for text in chart.iter("text")]
            assert not [(one, two) for n, one in enumerate(boxes) for two in boxes[:n] if _overlap(one, two)]
    rows_of = [cell.row for cell in ranked]
    cells = verdict_matrix(rows_of, comparison.tests(column)).findall("rect")
    assert len(cells) == rows * (rows - 1)


def test_the_matrix_has_room_for_long_names_and_no_negative_zero() -> None:
    names = ["a", "a model with a long name"]
    equal = SystemResult([ItemScores.ratio("accuracy", np.ones(4), None)] * 2)
    chart = verdict_matrix(names, compare_pairs(dict.fromkeys(names, equal)))
    last = [text for text in chart.iter("text") if "rotate" in text.get("transform", "")][-1]
    assert float(last.get("x", 0)) + 0.74 * text_width(names[1]) * 0.93 < float(chart.get("viewBox", "").split()[2])
    assert [text.text for text in chart.iter("text") if text.get("class") == "on-undecided"] == ["0.0", "0.0"]


def test_rows_with_equal_predictions_do_not_make_the_smallest_difference_smaller(make: Make) -> None:
    two = make(2)
    same = [replace(cell, seeds=[cell.seeds[0]] * 3) if cell.row == ROWS[0] else cell for cell in two.cells]
    two = replace(two, cells=tuple(same))
    twins = [replace(cell, row=name) for cell in same if cell.row == ROWS[0] for name in ("twin", "third")]
    more = replace(two, rows=(*two.rows, "twin", "third"), cells=(*same, *twins))
    wanted = two.detectable(two.columns[0])
    assert wanted is not None
    assert (more.detectable(more.columns[0]) or 0.0) > wanted  # six pairs instead of one


def test_systems_with_equal_predictions_leave_the_smallest_difference_unknown(tmp_path: Path, make: Make) -> None:
    two = make(2)
    seeds = [next(cell for cell in two.cells if cell.row == ROWS[0]).seeds[0]] * 3
    equal = replace(two, cells=tuple(replace(cell, seeds=seeds) for cell in two.cells))
    assert equal.detectable(equal.columns[0]) is None
    assert "0.0 points" not in "\n".join(comparison_lines(equal))
    assert "smallest difference" not in write_comparison(equal, tmp_path).read_text(encoding="utf-8")


def _box(text: Element) -> tuple[str, float, float, float, float]:
    """Left, top, right and bottom of a text that is not rotated."""
    shown = "".join(text.itertext()).removeprefix(next((title.text or "" for title in text.iter("title")), ""))
    wide, x, y = text_width(shown) * 0.93, float(text.get("x", 0)), float(text.get("y", 0))
    left = x - wide * {"end": 1.0, "middle": 0.5}.get(text.get("text-anchor", ""), 0.0)
    return shown, left, y - FONT * 0.7, left + wide, y


def _overlap(one: tuple, two: tuple) -> bool:
    return one[1] < two[3] and two[1] < one[3] and one[2] < two[4] and two[2] < one[4]


def test_the_verdict_names_what_is_decided(make: Make) -> None:
    different = make(2, gap=0.15)
    column = different.columns[0]
    assert [test.verdict for test in different.tests(column)] == ["decided"]
    assert "fasttext is best" in different.verdict(column)
    assert "\\textbf" in latex_table(different, column).splitlines()[5]
    assert "\\textbf" not in latex_table(different, column).splitlines()[6]
    near = make(2, gap=0.0)
    assert "not decided" in near.verdict(near.columns[0])
    assert latex_table(near, near.columns[0]).count("\\textbf") == 2
    lines = [*comparison_lines(near)]
    assert near.verdict(near.columns[0]) in lines
    assert "Comparison of 2 systems" in repr(near)
    assert "<table>" in near._repr_html_()


def test_names_are_escaped_for_latex(make: Make) -> None:
    two = make(2)
    column = replace(two.columns[0], name=r"a\b {c} -> d~e^f <g> $5")
    named = replace(two, columns=(column,), cells=tuple(replace(cell, column=column) for cell in two.cells[::2]))
    row = r"a\textbackslash{}b \{c\} $\to$ d\textasciitilde{}e\textasciicircum{}f \textless{}g\textgreater{} \$5 & "
    assert latex_table(named, column).splitlines()[3].startswith(row)


def test_disagreements_are_items_on_which_scores_differ(make: Make) -> None:
    comparison = make(3)
    column = comparison.columns[0]
    found = comparison.disagreements(column, 5)
    assert len(found) == 5
    for each in found:
        assert max(each.right.values()) - min(each.right.values()) == 1
        best = max(each.right, key=lambda row: each.right[row])
        worst = min(each.right, key=lambda row: each.right[row])
        assert each.predicted[best] == each.label != each.predicted[worst]


def test_the_word_label_is_translated(make: Make) -> None:
    comparison = make(3)
    case = comparison.disagreements(comparison.columns[0], 1)[0]
    with using_language("zh"):
        words = "".join(_case(case).itertext())
    assert "标签 " in words
    assert "label" not in words


def test_predicted_numbers_are_neither_right_nor_wrong(make: Make) -> None:
    comparison = make(2)
    case = comparison.disagreements(comparison.columns[0], 1)[0]
    numbers = replace(case, right={"onehot": 0.0, "cnn": -0.25}, predicted={"onehot": "3.1", "cnn": "0.4"})
    assert {each.get("class") for each in _case(case).iter("span")} >= {"chip right", "chip wrong"}
    assert {each.get("class") for each in _case(numbers).iter("span")} == {"chip", "quiet"}
    assert "\u2717" not in "".join(_case(numbers).itertext())
