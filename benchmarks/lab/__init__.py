"""The laboratory: when and why fusing two models helps, and by which method. Run `make lab`; see README.md here."""
