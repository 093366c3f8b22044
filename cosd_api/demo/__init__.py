"""The demonstration: two very small bundled models, servers for them, and their fusion."""
