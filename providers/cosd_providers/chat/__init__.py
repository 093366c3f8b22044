"""Chat templates: loading, rendering, and the white space before answers."""
