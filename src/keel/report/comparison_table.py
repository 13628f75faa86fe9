"""The table of a comparison: scores and costs as text."""

from collections.abc import Iterator, Sequence

from keel.localization import gettext_noop, translate, translated
from keel.metrics.comparison_results import Cell, Comparison
from keel.metrics.scores import score_name
from keel.text_table import aligned_lines


def short_size(count: float) -> str:
    """A number of bytes or parameters: 950, 12.3k, 4.4M, 1.2G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.{1 if count < 100 * size else 0}f}{unit}"
    return f"{count:.0f}"


COSTS = ("95% interval", "pre-train", "fine-tune", "parameters", "memory", "texts/s", "epochs")
TABLE_HEAD = ("", "score", *map(gettext_noop, COSTS))


def table_rows(ranked: Sequence[Cell]) -> list[list[str]]:
    """The figures of each cell as text, in the order of `TABLE_HEAD`."""
    return [
        [
            cell.row,
            f"{cell.score.value:.3f}",
            f"{cell.score.low:.3f} to {cell.score.high:.3f}",
            f"{cell.pretraining.seconds:.0f} s" if cell.pretraining else "-",
            f"{cell.average('seconds'):.1f} s",
            short_size(cell.seeds[0].parameters),
            f"{short_size(cell.peak_memory)}B",
            f"{cell.average('texts_per_second'):,.0f}",
            f"{cell.pretraining.epochs:.2g} + {cell.average('epochs'):.3g}"
            if cell.pretraining
            else f"{cell.average('epochs'):.3g}",
        ]
        for cell in ranked
    ]


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """The comparison as lines of text: a table and a verdict for each test set, and what failed."""
    for number, column in enumerate(comparison.columns):
        if number:
            yield ""
        ranked = comparison.ranking(column)
        if ranked:
            head = [column.name, *translated((score_name(ranked[0].metric), *TABLE_HEAD[2:]))]
            yield from aligned_lines([head, *table_rows(ranked)], left=1)
            if len(sizes := comparison.sizes(column)) > 1:
                yield ""
                rows = [[cell.row, *(_at(comparison, cell, size) for size in sizes)] for cell in ranked]
                yield from aligned_lines(
                    [[translate("training examples"), *(f"{size:,}" for size in sizes)], *rows], left=1
                )
        yield comparison.verdict(column)
        if (detectable := comparison.detectable(column)) is not None:
            shown = f"{100 * detectable:.1f} points"
            yield f"smallest difference that this test could show (power 80%): {shown}"
    for cell in comparison.failed():
        yield f"{cell.row} on {cell.column.name} ({cell.size:,} examples): {cell.error}"


def _at(comparison: Comparison, cell: Cell, size: int) -> str:
    found = comparison.cell(cell.row, cell.column, size)
    return f"{found.score.value:.3f}" if found.seeds else "-"
