"""Reading what requirements files, lock files and environments pin."""
