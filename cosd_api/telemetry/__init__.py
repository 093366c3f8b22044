"""OpenTelemetry: a span for each fusion, and a span for each of its requests."""
