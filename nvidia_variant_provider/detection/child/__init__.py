"""The child process that asks the driver's native libraries."""
