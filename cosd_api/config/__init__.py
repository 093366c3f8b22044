"""Settings files: the settings of a fusion in a file that people edit and that programs load and save."""
