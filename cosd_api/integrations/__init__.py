"""Fusions behind the interfaces of other libraries. Each needs the extra of its name."""
