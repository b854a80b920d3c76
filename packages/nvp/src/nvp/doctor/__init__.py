"""Whether an installed stack can use the GPUs of a machine, and proof of it."""
