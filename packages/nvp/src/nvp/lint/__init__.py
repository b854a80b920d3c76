"""Rules for metadata and wheels, the findings they make, and their reports."""
