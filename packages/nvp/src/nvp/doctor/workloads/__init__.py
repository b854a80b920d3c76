"""The user's own commands, run in the environment that is looked at."""
