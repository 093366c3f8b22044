"""Settings files, which contain the settings of a fusion: people can edit them, and programs load and save them."""
