"""Reports as self-contained HTML files: no network, no scripts."""

from keel.report.charts import Bar, bars, lines
from keel.report.decoding_page import decoding_page
from keel.report.html_page import Page, write_picture
from keel.report.scatter_map import draw_map

__all__ = ["Bar", "Page", "bars", "decoding_page", "draw_map", "lines", "write_picture"]
