"""The GPU code of a whole index, inspected wheel by wheel and kept in one file."""
