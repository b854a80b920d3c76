"""The GPU code of a whole index, inspected wheel by wheel and stored in one file."""
