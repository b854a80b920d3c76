"""Older variant metadata, rewritten in the version of the format that is written."""
