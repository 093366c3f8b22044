"""Fusions as models in other libraries. An integration requires the extra of the same name."""
