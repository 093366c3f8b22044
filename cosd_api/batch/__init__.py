"""Batches: a file of prompts, answered line by line into another file, which a later run resumes."""
