"""Write the results of experiments into their pages: python -m keel.claims.write_pages [N ...] [--folder docs/claims]

A page is docs/claims/NNN.md, its pictures are docs/claims/figures/NNN*.svg. Its title and its section "Result" are
written from the experiment; the other sections are kept. Without numbers, the pages of all experiments of up to a
minute are written; a page whose result is recorded ("Recorded: ...") changes only if its number is given.

With --model (and --data), the result of this model is written below the one without, as "Recorded with NAME".
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from keel import claims
from keel.claims.claim import VERDICTS, Verdict
from keel.errors import UsageError
from keel.report.html_page import write_picture

LONGEST = 1.0
"""Minutes of the slowest experiments whose pages are written by default."""
RESULT = re.compile(r"(?<=^## Result\n).*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
RECORDED = re.compile(r"^### Recorded with (?P<name>.+)\n(?P<result>(?s:.*?))(?=^### Recorded with |\Z)", re.MULTILINE)
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
ROUNDING = 1e-3
"""Numbers below this are differences by rounding, which depend on the processor."""


def render_page(text: str, number: int, verdict: Verdict, recorded: str = "") -> str:
    """The page with the title and result of this experiment; `recorded` is the name of the model of another result."""
    _, _, body = text.partition("\n")
    if len(found := RESULT.findall(body)) != 1:
        raise UsageError(f"{page_name(number)} needs one section '## Result': add it")
    output = "\n".join(verdict.rows)
    result = f"\n```text\n{output}\n```\n\n**{VERDICTS[verdict.holds]}**: {verdict.figures}.\n\n"
    for file, each in zip(picture_files(number, verdict, recorded), verdict.pictures, strict=True):
        result += f"![Figure of claim {number}]({file})\n\n{each.caption}\n\n"
    results = {match["name"]: match["result"] for match in RECORDED.finditer(found[0])}
    without = RECORDED.sub("", found[0])
    if recorded:
        results[recorded] = result
    else:
        without = result
    section = without + "".join(f"### Recorded with {name}\n{each}" for name, each in results.items())
    page = f"# {number}. {claims.CLAIMS[number].title}\n" + RESULT.sub(lambda _: section, body)
    return page.rstrip("\n") + "\n"


def picture_files(number: int, verdict: Verdict, recorded: str = "") -> list[str]:
    """Files of the pictures beside the page, by the first word of the model's name and their own names."""
    model = re.split(r"\W", recorded.lower())[0]
    parts = [[f"{number:03}", model, each.name] for each in verdict.pictures]
    return [f"figures/{'-'.join(filter(None, each))}.svg" for each in parts]


def page_name(number: int) -> str:
    return f"{number:03}.md"


def is_recorded(text: str) -> bool:
    """Whether the result without a model was recorded in a long run or on other hardware."""
    found = RESULT.search(text)
    return found is not None and "\nRecorded: " in RECORDED.sub("", found[0])


def page_differences(page: str, other: str, *, timed: bool = False) -> Iterator[str]:
    """Lines that differ beyond the tolerance of numbers: 5%, or two units of the last digit, or rounding errors.

    Words must be equal; with `timed`, numbers may differ.
    """
    one, two = page.splitlines(), other.splitlines()
    for left, right in zip(one, two, strict=False):
        numbers = [NUMBER.findall(line) for line in (left, right)]
        words = [" ".join(NUMBER.sub("#", line).split()) for line in (left, right)]
        if words[0] != words[1] or not (timed or all(map(_close, *numbers))):
            yield f"{left!r} != {right!r}"
    if len(one) != len(two):
        yield f"{len(one)} lines != {len(two)} lines"


def _close(one: str, other: str) -> bool:
    first, second = (float(each.replace(",", "")) for each in (one, other))
    digits = max(len(each.partition("e")[0].partition(".")[2]) for each in (one, other))
    unit = 10.0**-digits
    gap = abs(first - second)
    return gap <= max(0.05 * max(abs(first), abs(second)), 2 * unit if "e" not in one else 0, ROUNDING)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="write the results of experiments into their pages")
    parser.add_argument("numbers", type=int, nargs="*", help="numbers of claims [all of up to a minute]")
    parser.add_argument("--folder", type=Path, default=Path("docs/claims"), help="folder of the pages [docs/claims]")
    parser.add_argument("--model", help="model of the experiment")
    parser.add_argument("--data", help="data of the experiment")
    parser.add_argument("--name", default="", help="name of the model on the page")
    options = parser.parse_args(arguments)
    if bool(options.model) != bool(options.name) or (options.model and not options.numbers):
        parser.error("give --model and --name together, with the numbers of the claims")
    torch.set_num_threads(1)
    for number in options.numbers or [number for number, claim in claims.CLAIMS.items() if claim.minutes <= LONGEST]:
        path = options.folder / page_name(number)
        text = path.read_text(encoding="utf-8")
        if is_recorded(text) and not options.numbers:
            continue
        verdict = claims.run(number, model=options.model, data=options.data)
        assert verdict is not None
        path.write_text(render_page(text, number, verdict, options.name), encoding="utf-8")
        (options.folder / "figures").mkdir(exist_ok=True)
        for file, each in zip(picture_files(number, verdict, options.name), verdict.pictures, strict=True):
            write_picture(options.folder / file, each.picture)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
