"""Which build each driver and GPU gets, and what a new release changes."""
