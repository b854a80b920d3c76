"""Talking to package indexes."""
