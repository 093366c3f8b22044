"""A fused answer as one page for a browser: `page(result)`."""

from cosd_api.report.html.page import page

__all__ = ["page"]
