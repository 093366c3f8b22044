"""The laboratory: when and why fusing two models helps, and by which method. Run `make lab`; README.md explains it."""
