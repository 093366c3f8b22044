"""Teacher forcing: what two models would have written in each place of a given text."""
