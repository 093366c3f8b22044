"""The laboratory: when does fusing two models help, by which method, and why. `make lab`; see README.md here."""
