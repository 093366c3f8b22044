"""Tracing with OpenTelemetry: one span for each fusion, and one for each of its requests."""
