"""Teacher forcing: the tokens that two models would write at each place of a given text."""
