"""What the GPUs of this machine show when code runs on them."""
