"""Run the user's own pip with the local index."""
