"""Checking, evaluating and writing variant metadata."""
