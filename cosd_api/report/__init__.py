"""What a fusion did, for people to read."""
