"""Many machines and one choice: which build each gets, and the fewest for all."""
