"""Elements of the page about a comparison."""
