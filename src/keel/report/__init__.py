"""What was found, as one HTML file that needs nothing else: no network, no scripts."""

from keel.report.charts import Bar, bars, lines
from keel.report.map import draw_map
from keel.report.page import Page, write_picture

__all__ = ["Bar", "Page", "bars", "draw_map", "lines", "write_picture"]
