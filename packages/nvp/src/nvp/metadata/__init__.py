"""Variant metadata of other people and of publishers: checked, evaluated, written."""
