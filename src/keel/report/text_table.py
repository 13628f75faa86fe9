"""Tables as lines of text."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size


def aligned_lines(rows: Sequence[Sequence[str]], *, left: int = 0) -> Iterator[str]:
    """A table whose first `left` columns are left-aligned, the others right-aligned."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        pairs = enumerate(zip(row, gaps, strict=True))
        yield "  ".join(cell + gap if number < left else gap + cell for number, (cell, gap) in pairs).rstrip()


def wrapped_lines(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """A table of at most `width` columns of a terminal, whose first column is left-aligned: further columns follow
    below, with the first one repeated; longer cells are cut."""
    names, *columns = [list(column) for column in zip(*rows, strict=True)]
    names = [_cut(name, width // 2) for name in names]
    first = max(map(cell_len, names), default=0)
    blocks: list[list[list[str]]] = []
    used = width
    for column in columns:
        column = [_cut(cell, width - first - 2) for cell in column]
        size = 2 + max(map(cell_len, column), default=0)
        if used + size > width:
            blocks.append([names])
            used = first
        blocks[-1].append(column)
        used += size
    for number, block in enumerate(blocks):
        yield from [""] * (number > 0)
        yield from aligned_lines([*zip(*block, strict=True)], left=1)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(1, width - 1)).rstrip()}…"
