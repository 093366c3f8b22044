"""HTTP requests to servers; `transport.py` is the entry point."""
