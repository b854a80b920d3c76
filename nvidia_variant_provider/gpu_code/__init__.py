"""GPU code inside wheels, libraries and loose files."""
