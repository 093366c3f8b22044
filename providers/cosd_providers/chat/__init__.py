"""Chat templates: loading, rendering, and the white space that they write before answers."""
