"""What was found, as one HTML file that needs nothing else: no network, no scripts."""

from keel.report.charts import Bar, bars, lines
from keel.report.decoding import decoding_page
from keel.report.map import draw_map
from keel.report.page import Page, write_picture

__all__ = ["Bar", "Page", "bars", "decoding_page", "draw_map", "lines", "write_picture"]
