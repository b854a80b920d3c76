"""Reading the pins of requirements files, lock files and environments."""
