"""HTTP requests to servers. Read `transport.py` first."""
