"""Comparison of methods and models on a user's own questions: graders, statistics, runs and their reports."""
