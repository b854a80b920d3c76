"""Rewriting older variant metadata in the current version of the format."""
