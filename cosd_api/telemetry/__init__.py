"""OpenTelemetry: a span for each fusion, and one for each of its requests."""
