"""Results of experiments as HTML pages, and an index of all claims with the results beside it."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import quote

from keel.claims import CLAIMS
from keel.claims.claim import VERDICTS, Verdict
from keel.errors import UsageError
from keel.report.html_page import Page, tag

META = re.compile(r'<meta name="keel-(claim|verdict)" content="([^"]*)">')
HEAD = 10_000
"""Characters of a page that may hold its facts."""


def page_file(path: str | Path) -> Path:
    """The path, if it ends with .html."""
    if Path(path).suffix.lower() != ".html":
        raise UsageError(f"{path} must end in .html: choose another --out")
    return Path(path)


def write_verdict(path: str | Path, number: int, verdict: Verdict) -> Path:
    """Write the page of one experiment: verdict, figures and output."""
    facts = {"claim": str(number), "verdict": str(verdict)}
    page = Page(f"{number}. {CLAIMS[number].title}", facts=facts)
    page.text(tag("mark", f"{VERDICTS[verdict.holds]}: "), f"{verdict.figures}.")
    for each in verdict.pictures:
        page.figure(each.picture, each.caption)
    page.section("Output of the experiment")
    page.output(verdict.rows)
    page.text("Repeat it with ", tag("code", f"keel claim {number}"))
    return page.write(page_file(path))


def write_index(path: str | Path) -> Path:
    """Write a table of all claims, with a link and the verdict where a page of it is in the same folder."""
    path = page_file(path)
    found = dict(filter(None, map(_read_verdict, sorted(path.parent.glob("*.html")))))
    page = Page("Claims", f"{len(found)} of {len(CLAIMS)} experiments have a page in this folder.", layout="broad")
    rows = []
    for number, claim in CLAIMS.items():
        name, verdict = found.get(number, ("", ""))
        title = tag("a", claim.title, href=quote(name)) if name else claim.title
        rows.append((str(number), title, verdict or tag("code", f"keel claim {number} --out {number:03}.html")))
    page.table(("number", "claim", "result"), rows, numeric=False)
    return page.write(path)


def _read_verdict(path: Path) -> tuple[int, tuple[str, str]] | None:
    """Number, file name and verdict of a page that `write_verdict` wrote."""
    with open(path, encoding="utf-8", errors="replace") as file:
        facts = {name: unescape(value) for name, value in META.findall(file.read(HEAD))}
    number = facts.get("claim", "")
    return (int(number), (path.name, facts.get("verdict", ""))) if number.isdecimal() else None
