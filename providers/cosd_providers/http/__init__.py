"""HTTP. Read `transport.py` first: the only module that knows the client library."""
