"""The build for each driver and GPU, and the changes in a new release."""
