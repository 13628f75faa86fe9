"""Files of a comparison: results as JSON lines, csv and LaTeX, figures as SVG, and the page."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keel.metrics.comparison_results import Column, Comparison
from keel.metrics.scores import score_name
from keel.report.comparison_charts import cost_chart, learning_curves, ranking_chart
from keel.report.comparison_page import comparison_page
from keel.report.html_page import write_picture, write_text

COLUMNS = ("row", "column", "part", "train_size", "metric", "score", "low", "high", "seeds", "test_size", "parameters")
COSTS = ("pretraining_seconds", "pretraining_epochs", "finetuning_seconds", "finetuning_epochs")
CSV: tuple[str, ...] = (*COLUMNS, *COSTS, "peak_memory_bytes", "texts_per_second", "frozen", "error")
TEX_NAMES = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater"}
TEX_ESCAPES = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: f"\\text{name}{{}}" for character, name in TEX_NAMES.items()}
)


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write all files into a folder; returns the page."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "results.jsonl", "".join(f"{line}\n" for line in _json_lines(comparison)))
    write_text(out / "results.csv", _csv(comparison))
    write_text(out / "results.tex", "\n\n".join(latex_table(comparison, column) for column in comparison.columns))
    figures = out / "figures"
    figures.mkdir(exist_ok=True)
    for number, column in enumerate(comparison.columns, 1):
        ranked = comparison.ranking(column)
        if not ranked:
            continue
        suffix = f"-{number}" if len(comparison.columns) > 1 else ""
        write_picture(figures / f"ranking{suffix}.svg", ranking_chart(ranked), f"Scores: {column.name}")
        write_picture(figures / f"cost{suffix}.svg", cost_chart(ranked), f"Cost: {column.name}")
        if len(comparison.sizes(column)) > 1:
            path, title = figures / f"learning-curves{suffix}.svg", f"Learning curves: {column.name}"
            write_picture(path, learning_curves(comparison, column), title)
    return comparison_page(comparison).write(out / "report.html")


def _json_lines(comparison: Comparison) -> Iterator[str]:
    """Cells, then pairwise tests."""
    for cell in comparison.to_dicts():
        yield json.dumps({"kind": "cell", **cell}, ensure_ascii=False)
    for test in comparison.tests_to_dicts():
        yield json.dumps({"kind": "test", **test}, ensure_ascii=False)


def _csv(comparison: Comparison) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, CSV, restval="", lineterminator="\n")
    table.writeheader()
    for cell in comparison.to_dicts():
        table.writerow({name: _csv_cell(value) for name, value in cell.items()})
    return text.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(f"{each:.4f}" for each in value)
    return f"{value:.6g}" if isinstance(value, float) else value


def latex_table(comparison: Comparison, column: Column) -> str:
    """The ranking of a column as a LaTeX table (booktabs); bold: the best, and what is not decided against it."""
    ranked = comparison.ranking(column)
    best = ranked[0].row if ranked else ""
    beaten = {test.second for test in comparison.tests(column) if test.first == best and test.decided}
    metric = score_name(ranked[0].metric) if ranked else "score"
    lines = [
        f"% {_tex(comparison.verdict(column))}",
        "\\begin{tabular}{lrrrrr}",
        "\\toprule",
        f"{_tex(column.name)} & {_tex(metric)} & 95\\% interval & training (s) & texts/s & parameters \\\\",
        "\\midrule",
    ]
    for cell in ranked:
        score = f"{cell.score.value:.3f}"
        figures = [
            score if cell.row in beaten else f"\\textbf{{{score}}}",
            f"{cell.score.low:.3f}--{cell.score.high:.3f}",
            f"{cell.total_seconds:.1f}",
            f"{cell.average('texts_per_second'):.0f}",
            f"{cell.seeds[0].parameters:,}".replace(",", "\\,"),
        ]
        lines.append(" & ".join([_tex(cell.row), *figures]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _tex(text: str) -> str:
    return text.translate(TEX_ESCAPES).replace("-\\textgreater{}", "$\\to$")
