"""A real pair: two specialists of one pretrained chat model, and questions that only one or both can answer."""
