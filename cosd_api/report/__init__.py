"""Reports on a fused answer: in the terminal, and as a page for a browser."""
