"""The demonstration: two very small models that ship with the package, their servers, and what fusing them gives."""
