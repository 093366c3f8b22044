"""A real pair: two specialists of one pretrained chat model, and questions that need one of them or both."""
