"""The demonstration: three very small bundled models, their servers, and their fusion."""
