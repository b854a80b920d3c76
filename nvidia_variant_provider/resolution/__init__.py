"""The choice of a label for a machine, and the reasons against the others."""
