"""Wheel names and the files in ``*.dist-info``."""
