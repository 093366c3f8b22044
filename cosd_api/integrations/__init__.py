"""Fusions as models in other libraries. Each integration requires the extra of the same name."""
