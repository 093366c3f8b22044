"""Applications of the library. They use public modules and the faces of its packages only."""
