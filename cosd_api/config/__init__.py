"""Settings files: a fusion as a file that people edit, and programs load and save."""
