"""The GPU code inside wheels and libraries, and what follows from it."""
