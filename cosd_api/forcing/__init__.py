"""Teacher forcing: find the tokens that two models would write at each place in a given text."""
