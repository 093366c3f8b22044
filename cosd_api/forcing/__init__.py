"""Teacher forcing: the tokens of two models in each place of a given text."""
