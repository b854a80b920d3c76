"""The user's own pip, run with the loopback index."""
