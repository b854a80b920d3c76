"""Check whether an installed stack can use the GPUs of a machine, and prove it."""
