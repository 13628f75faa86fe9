"""Style sheets of pages and pictures, light and dark."""

import re

COLOURS = {
    "paper": ("#fdfcf9", "#15181c"),
    "ink": ("#22262b", "#e4e2dc"),
    "faint": ("#6a7078", "#98a0a8"),
    "line": ("#dedbd2", "#31373e"),
    "mark": ("#1f5f8b", "#6fb3e0"),
    "plain": ("#a9b4bd", "#566069"),
    "soft": ("#f3f0e8", "#1d2126"),
    "good": ("#dcebdc", "#23402b"),
    "bad": ("#f5dfd8", "#4a2820"),
    "colour0": ("#1f5f8b", "#6fb3e0"),
    "colour1": ("#b5541c", "#eb9a63"),
    "colour2": ("#2f7d4f", "#77c796"),
    "colour3": ("#8a4a9e", "#c794d8"),
    "colour4": ("#8a7414", "#d3bd57"),
    "colour5": ("#a83a56", "#ea8aa2"),
}
"""Light and dark."""
LIGHT, DARK = ({name: pair[number] for name, pair in COLOURS.items()} for number in (0, 1))

PAGE = """
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.6 "Iowan Old Style", Charter, Georgia, serif;
}
main { max-width: 46rem; margin: 0 auto; padding: 3.5rem 1.25rem 5rem; }
main.broad { max-width: 90rem; }
main.fit {
  max-width: none; height: 100vh; box-sizing: border-box; padding: .9rem 1.4rem; overflow: hidden;
  display: flex; flex-direction: column;
}
main.fit h1 { font-size: 1.5rem; margin: 0; padding-right: 15rem; }
main.fit figure { flex: 1; min-height: 0; margin: .5rem 0 0; display: flex; flex-direction: column; overflow: hidden; }
main.fit figure svg { flex: 1; min-height: 0; height: 0; cursor: grab; touch-action: none; }
main.fit figcaption { font-size: .95rem; }
nav { position: fixed; top: .9rem; right: 1.4rem; display: flex; gap: .4rem; }
button {
  font: 15px system-ui, sans-serif; min-width: 2.3rem; padding: .3rem .6rem; cursor: pointer;
  color: var(--ink); background: var(--soft); border: 1px solid var(--line); border-radius: 4px;
}
#tip {
  position: fixed; pointer-events: none; padding: .2rem .6rem; border-radius: 4px; font-size: 1.2rem;
  background: var(--ink); color: var(--paper);
}
pre {
  font: .82rem/1.5 ui-monospace, Menlo, Consolas, monospace; background: var(--soft); padding: 1rem; overflow-x: auto;
}
a { color: var(--mark); }
h1 { font-size: 2.3rem; line-height: 1.15; margin: 0 0 .6rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; margin: 3rem 0 .6rem; padding-top: 1.2rem; border-top: 1px solid var(--line); }
p { margin: .7rem 0; }
.lead { font-size: 1.15rem; color: var(--faint); }
mark { background: none; color: var(--mark); font-weight: 600; }
code {
  font: .86em ui-monospace, Menlo, Consolas, monospace; background: var(--soft);
  padding: .1em .35em; border-radius: 3px;
}
dl { display: flex; flex-wrap: wrap; gap: 1.2rem 2.6rem; margin: 1.6rem 0; }
dl div { display: flex; flex-direction: column; }
dd { margin: 0; font-size: 1.7rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
dt, figcaption, thead, svg { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
dt { font-size: .8rem; color: var(--faint); }
.wide { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; font-variant-numeric: tabular-nums; }
th { font-weight: 500; font-size: .8rem; color: var(--faint); text-align: right; padding: .3rem .6rem; }
td { text-align: right; padding: .4rem .6rem; border-top: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td:has(> em) { text-align: left; }
figure { margin: 1.6rem 0; overflow-x: auto; }
details { margin: 1.2rem 0; }
summary { cursor: pointer; color: var(--mark); }
.figures table { font-size: .84rem; }
.figures td, .figures th { white-space: nowrap; padding-left: .35rem; padding-right: .35rem; }
.figures td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
.words td, .words th { text-align: left; }
tr.dropped { color: var(--faint); }
.case { margin: 1.1rem 0; padding: .1rem 1rem; border-left: 3px solid var(--line); }
.case p { margin: .4rem 0; font-size: .9rem; }
blockquote { margin: .4rem 0; overflow-wrap: anywhere; }
.quiet { color: var(--faint); font-size: .82rem; }
.chips { display: flex; flex-wrap: wrap; gap: .35rem; font-family: system-ui, -apple-system, "Segoe UI", sans-serif; }
.chip { font-size: .8rem; padding: .12rem .55rem; border-radius: 1rem; overflow-wrap: anywhere; }
.chip b { font-weight: 600; }
.chip.right { background: var(--good); }
.chip.wrong { background: var(--bad); }
figcaption { font-size: .82rem; line-height: 1.45; color: var(--faint); margin-top: .4rem; }
.on-narrow { display: none; }
@media screen and (max-width: 34rem) { .on-narrow { display: block; } .on-broad { display: none; } }
@media print {
  body { background: none; }
  main { max-width: none; padding: 0; }
  h2 { break-after: avoid; margin-top: 1.6rem; }
  figure, tr, .case { break-inside: avoid; }
  .wide, figure { overflow: visible; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
PICTURE = """
svg { display: block; width: 100%; height: auto; font-size: 13px; fill: var(--ink); }
svg .faint { fill: var(--faint); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .plain { fill: var(--plain); }
svg .mark { fill: var(--mark); }
svg .curve { fill: none; stroke: var(--mark); stroke-width: 2; stroke-linejoin: round; }
svg .curve.second { stroke: var(--plain); }
svg .interval { stroke: var(--ink); stroke-width: 1.5; }
svg .point { fill: var(--plain); }
svg .point:hover { fill: var(--ink); }
svg .point.mark { fill: var(--mark); }
svg .leader { stroke: var(--plain); stroke-width: .7; }
svg .arrow { stroke: var(--mark); stroke-width: 1.3; opacity: .75; }
svg .box { fill: var(--paper); stroke: var(--plain); stroke-width: 1.2; }
svg .box.mark { stroke: var(--mark); stroke-width: 2; }
svg .box.faint { stroke: var(--line); }
svg .box.inner { fill: none; stroke-width: 1; }
svg .dot { fill: var(--paper); stroke: var(--ink); stroke-width: 1.2; }
svg .dot.small { stroke: var(--faint); stroke-width: 1; }
svg .curve.thin { stroke-width: 1.2; stroke-dasharray: 4 4; }
svg .better { fill: var(--mark); }
svg .worse { fill: var(--plain); }
svg .undecided { fill: none; stroke: var(--line); }
svg .on-better { fill: var(--paper); font-weight: 600; }
svg .on-worse { fill: var(--ink); font-weight: 600; }
svg .on-undecided { fill: var(--faint); }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .dashed { stroke-dasharray: 6 4; }
svg .small { font-size: 11px; }
svg .heading { font-size: 15px; font-weight: 600; }
svg .subscript { font-size: .75em; }
svg .halo { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; }
svg .frame { fill: none; stroke: var(--line); stroke-width: 1; }
svg .node { fill: var(--soft); stroke: var(--plain); stroke-width: 1.1; }
svg .cell { fill: var(--paper); stroke: var(--plain); stroke-width: .7; }
svg .backing { fill: var(--paper); }
svg .unused { fill: none; stroke: var(--line); stroke-width: 1.1; }
svg .wire { fill: none; stroke: var(--faint); stroke-width: 1.2; stroke-linejoin: round; }
svg .tip { fill: var(--faint); }
svg .wire.weak { stroke: var(--line); }
svg .tip.weak { fill: var(--line); }
svg .wire.strong { stroke: var(--mark); stroke-width: 1.6; }
svg .tip.strong { fill: var(--mark); }
svg .accent { fill: var(--mark); font-weight: 600; }
""" + "".join(
    f"svg .colour{number} {{ stroke: var(--colour{number}); }}\nsvg .fill{number} {{ fill: var(--colour{number}); }}\n"
    f"svg .tint{number} {{ fill: var(--colour{number}); fill-opacity: .15; stroke: var(--colour{number}); }}\n"
    f"svg .wire.colour{number} {{ stroke: var(--colour{number}); }}\n"
    f"svg .tip.colour{number} {{ fill: var(--colour{number}); stroke: none; }}\n"
    for number in range(6)
)


def _named(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def _with(colours: dict[str, str]) -> str:
    """The rules of pictures with plain colours, which every program that draws SVG understands."""
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], PICTURE)


CSS = f"""
:root {{ color-scheme: light dark; {_named(LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_named(DARK)} }} }}
{PAGE}{PICTURE}"""
"""For a page."""
STANDALONE_CSS = f"""
svg {{ background: {LIGHT["paper"]}; font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
{_with(LIGHT)}
@media (prefers-color-scheme: dark) {{
svg {{ background: {DARK["paper"]}; }}
{_with(DARK)}
}}
"""
"""For a picture in a file of its own."""
