"""Rules for metadata and wheels, their findings, and reports."""
