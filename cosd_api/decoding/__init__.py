"""Decoding methods: Algorithm 1 as a pure state machine, and the loop that feeds it."""
