"""The local index: a server on the loopback interface."""
