"""The report of a comparison: one self-contained page."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from keel.events import pluralize
from keel.localization import translate
from keel.metrics.comparison_results import Cell, Column, Comparison, Disagreement
from keel.metrics.scores import score_name
from keel.metrics.significance import ALPHA, ASSUMED_SEED_STD, FEW_DISCORDANT
from keel.report.charts import WIDTH
from keel.report.comparison_charts import NARROW, cost_chart, learning_curves, ranking_chart, verdict_matrix
from keel.report.comparison_table import TABLE_HEAD, table_rows
from keel.report.html_page import Page, tag

MAX_TEXT = 400
"""Characters of an example text."""


def comparison_page(comparison: Comparison) -> Page:
    """Rankings, costs, learning curves, verdicts, and where systems disagree."""
    page = Page(f"Comparison of {pluralize(len(comparison.rows), 'system')}", "; ".join(comparison.notes) + ".")
    several = len(comparison.columns) > 1
    for column in comparison.columns:
        page.text(tag("mark", comparison.verdict(column)))
    if several:
        page.section("Overview")
        head = ["System", *(column.name for column in comparison.columns)]
        page.table(
            head,
            [[row, *(_score(comparison, row, column) for column in comparison.columns)] for row in comparison.rows],
        )
    for column in comparison.columns:
        if comparison.ranking(column):
            _add_column(page, comparison, column, f"{column.name}: " if several else "")
    if failed := comparison.failed():
        page.section("Failed or unfinished")
        rows = [[cell.row, cell.column.name, f"{cell.size:,}", cell.error] for cell in failed]
        page.table(["System", "Test set", "Training examples", "Reason"], rows, numeric=False)
    page.section("How the verdicts are made")
    page.text(
        "All systems are scored on the same test texts. A difference is compared with its noise: that of the texts "
        "(a paired bootstrap, the same resamples for all systems and seeds) plus that of training (the variance over "
        f"seeds; with one seed a deviation of {100 * ASSUMED_SEED_STD:g} points is assumed). It is decided if "
        f"the p-value by Student's t, after Holm's correction for all pairs, is below {ALPHA}. With fewer "
        f"than {FEW_DISCORDANT} texts on which two systems differ, McNemar's exact distribution counts as well. "
        "The 95% intervals are over texts and, if there are several, over seeds. "
        "Not decided does not mean equal: more test texts or more seeds may decide it."
    )
    return page


def _score(comparison: Comparison, row: str, column: Column) -> str:
    cell = comparison.cell(row, column)
    return f"{cell.score.value:.3f}" if cell.seeds else "-"


def _add_column(page: Page, comparison: Comparison, column: Column, prefix: str) -> None:
    ranked, tests = comparison.ranking(column), comparison.tests(column)
    page.section(f"{prefix}Ranking" if prefix else "Ranking")
    facts = [
        (f"{len(column.examples):,}", "test texts"),
        (f"{column.trained_on:,}", "training examples"),
        (f"{max(len(cell.seeds) for cell in ranked)}", "seeds"),
    ]
    if (detectable := comparison.detectable(column)) is not None:
        shown = f"{100 * detectable:.1f} points"
        facts.append((shown, "smallest difference this test could show"))
    page.facts(facts)
    page.figure(*ranking_figure(ranked))
    page.table(["System", *TABLE_HEAD[1:]], table_rows(ranked), dense=True)
    if tests:
        page.section(f"{prefix}Which differences are real")
        undecided = sum(not test.decided for test in tests)
        page.text(f"Decided: {len(tests) - undecided} of {pluralize(len(tests), 'pair')}; not decided: {undecided}.")
        page.figure(
            verdict_matrix([cell.row for cell in ranked], tests),
            "Points by which the system of the row is above that of the column. Filled: decided; outlined: not.",
        )
        rows = [
            [
                f"{test.first} - {test.second}",
                f"{100 * test.difference:+.1f}",
                translate(f"{100 * test.low:+.1f} to {100 * test.high:+.1f}"),
                f"{test.wins}:{test.losses}",
                _p(test.p_holm),
                _p(test.p_items),
                "-" if test.p_mcnemar is None else _p(test.p_mcnemar),
                f"{100 * test.detectable:.1f}",
                test.verdict,
            ]
            for test in tests
        ]
        classes = ["" if test.decided else "dropped" for test in tests]
        head = [
            "Pair",
            "points",
            "95% interval",
            "better:worse",
            "p (Holm)",
            "p bootstrap",
            "p McNemar",
            "detectable",
            "verdict",
        ]
        page.table(head, rows, summary="All tests", classes=classes, dense=True)
    page.section(f"{prefix}Cost against quality")
    caption = (
        "Seconds of one fine-tuning and, for systems that were pre-trained in this comparison, of pre-training. "
        "The line connects systems that no cheaper one surpasses."
    )
    page.figure(_for_screens(cost_chart(ranked), cost_chart(ranked, NARROW)), caption)
    if len(comparison.sizes(column)) > 1:
        page.section(f"{prefix}Learning curves")
        caption = "Means over seeds; each seed has its own sample of the training examples, the same for all systems."
        curves = (learning_curves(comparison, column, width) for width in (WIDTH, NARROW))
        page.figure(_for_screens(*curves), caption)
    if found := comparison.disagreements(column):
        page.section(f"{prefix}Where the systems disagree")
        page.text(
            "Test texts on which the systems differ most, with the most frequent prediction of each system's seeds."
        )
        for each in found:
            page.add(_case(each))


def ranking_figure(ranked: Sequence[Cell]) -> tuple[Element, str]:
    """The ranking as a chart for all screens, with its caption."""
    metric = translate(score_name(ranked[0].metric))
    metric = metric[0].upper() + metric[1:]
    caption = f"{metric} with 95% intervals over test texts and seeds; small rings are single seeds."
    return _for_screens(ranking_chart(ranked), ranking_chart(ranked, NARROW)), caption


def _for_screens(broad: Element, narrow: Element) -> Element:
    """A chart in two sizes, of which a screen or page shows one."""
    return tag("div", tag("div", broad, class_="on-broad"), tag("div", narrow, class_="on-narrow"))


def _case(case: Disagreement) -> Element:
    text = case.text if len(case.text) <= MAX_TEXT else f"{case.text[:MAX_TEXT]}…"
    chips: list[Element] = []
    judged = min(case.right.values()) >= 0  # not where numbers are predicted, whose distance counts
    for row, right in case.right.items():
        kind, symbol = ("chip right", " \u2713") if right >= 0.5 else ("chip wrong", " \u2717")
        shown = f" {case.predicted[row]}{symbol if judged else ''}"
        chips.append(tag("span", tag("b", row), shown, class_=kind if judged else "chip"))
    label = tag(
        "p",
        tag("span", f"{translate('label')} ", class_="quiet"),
        tag("b", case.label),
        tag("span", f" {case.where}", class_="quiet"),
    )
    return tag("article", tag("blockquote", text), label, tag("p", *chips, class_="chips"), class_="case")


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.3f}".removeprefix("0")
