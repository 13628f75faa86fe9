"""What was found, as one HTML file that needs nothing else: no network, no scripts."""

from keel.report.charts import Bar, bars, lines
from keel.report.page import Page

__all__ = ["Bar", "Page", "bars", "lines"]
