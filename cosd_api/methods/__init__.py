"""Ways to fuse models into one text, one file for each."""
