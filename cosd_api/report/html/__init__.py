"""A fused answer as one page to open in a browser: `page(result)`."""

from cosd_api.report.html.page import page

__all__ = ["page"]
