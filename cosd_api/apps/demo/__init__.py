"""The demonstration: three very small bundled models, servers for them, and their fusion."""
