"""A run, a federation or an arena as one page of HTML: no file beside it, no request, every string escaped.

`markup` escapes, `colours` and `svg` are what figures are drawn with, `figures` and `tables` what a page consists of,
and `page` puts it together with the files in `template`. `run_page` and `sweep_page` say what a folder's page holds.
"""

from coterie._src.report.html.run_page import run_page
from coterie._src.report.html.sweep_page import sweep_page

FILE = "report.html"
"""The name of the page in the folder that it is about."""

__all__ = ["FILE", "run_page", "sweep_page"]
