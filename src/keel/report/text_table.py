"""Tables as lines of text."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len


def aligned_lines(rows: Sequence[Sequence[str]], *, left: int = 0) -> Iterator[str]:
    """A table whose first `left` columns are left-aligned, the others right-aligned."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        pairs = enumerate(zip(row, gaps, strict=True))
        yield "  ".join(cell + gap if number < left else gap + cell for number, (cell, gap) in pairs).rstrip()
