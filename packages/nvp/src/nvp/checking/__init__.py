"""Checking whether what is pinned runs on machines, and what would."""
