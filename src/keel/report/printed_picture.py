"""PDF and PNG files of pictures, through typst: an optional dependency without system libraries."""

import re
import tempfile
from pathlib import Path
from typing import Literal

from keel.errors import KeelError, MissingExtra

Format = Literal["pdf", "png"]
DARK_RULES = re.compile(r"@media \(prefers-color-scheme: dark\) \{.*?\n\}\n", re.DOTALL)
SYSTEM_FONTS = re.compile(r'font-family: system-ui, [^;]*"Segoe UI", [^;]*;')
FONTS = '"Noto Sans", "Segoe UI", "Helvetica Neue", Arial, "DejaVu Sans", "Liberation Sans", "Noto Sans CJK SC"'
"""`system-ui` means nothing outside a browser: the first of these that is installed is used, and for characters that it
lacks any font that has them."""
DOTS_PER_INCH = 192.0
"""Two dots per CSS pixel."""


def require_printer() -> None:
    """Refuse PDF and PNG where typst is not installed."""
    try:
        import typst as typst
    except ModuleNotFoundError:
        raise MissingExtra("typst", "figures", "a .pdf or .png figure") from None


def print_picture(svg: str, format: Format) -> bytes:
    """The PDF or PNG file of an SVG file of ours, in its light colours and its own size."""
    require_printer()
    import typst

    light = SYSTEM_FONTS.sub(f"font-family: {FONTS};", DARK_RULES.sub("", svg))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "picture.svg").write_text(light, encoding="utf-8")
        document = Path(folder) / "page.typ"
        page = '#set page(width: auto, height: auto, margin: 0pt)\n#image("picture.svg")\n'
        document.write_text(page, encoding="utf-8")
        try:
            found = typst.compile(str(document), format=format, ppi=DOTS_PER_INCH)
        except RuntimeError as error:
            raise KeelError(f"the figure cannot be written as {format} ({error}): write an .svg file") from None
    assert isinstance(found, bytes)
    return found
