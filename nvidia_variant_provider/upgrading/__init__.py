"""Older variant metadata rewritten in the current schema version."""
