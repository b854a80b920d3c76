"""The build for each driver and GPU, and the changes by a new release."""
