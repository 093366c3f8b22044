"""The engine: what to draft, ask and wait for, and the driver that does it."""
