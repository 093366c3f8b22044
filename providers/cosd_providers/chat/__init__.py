"""Chat templates: where they come from, how a conversation is rendered, and what white space they put in between."""
