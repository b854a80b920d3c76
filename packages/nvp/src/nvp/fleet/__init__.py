"""Choose each machine's build, and the smallest set of builds for all machines."""
