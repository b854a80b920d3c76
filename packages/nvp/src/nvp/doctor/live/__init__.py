"""Run code on the GPUs of this machine, and report the results."""
