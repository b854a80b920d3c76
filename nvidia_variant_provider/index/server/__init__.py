"""The index on the loopback interface."""
