"""A real pair: two specialists of one pretrained chat model, and questions that need one specialist or both."""
