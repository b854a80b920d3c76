"""Checking metadata and wheels before they are published."""
