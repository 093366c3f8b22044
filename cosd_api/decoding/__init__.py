"""The engine: the decisions about drafts, questions and waits, and the driver that carries them out."""
