"""Choose builds for a fleet: one for each machine, and the smallest set for all."""
