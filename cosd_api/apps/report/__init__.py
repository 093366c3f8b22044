"""Reports on a fused answer, in the terminal and as an HTML page."""
