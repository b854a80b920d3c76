"""Choose a label for a machine, and explain the rejected ones."""
