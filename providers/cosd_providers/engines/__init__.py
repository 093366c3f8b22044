"""One file or package for each kind of server."""
