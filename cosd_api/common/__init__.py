"""Helpers that know nothing of fusions, for the library and its applications."""
