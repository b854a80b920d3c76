"""The child process that queries the driver's native libraries."""
