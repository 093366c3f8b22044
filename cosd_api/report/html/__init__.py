"""A fused answer as a single HTML page: `page(result)`."""

from cosd_api.report.html.page import page

__all__ = ["page"]
