"""Fusions as models of other libraries. Each integration needs the extra of the same name."""
