"""Batches: the prompts in one file are answered line by line, and the answers are written to another file.

A later run can continue an unfinished batch.
"""
