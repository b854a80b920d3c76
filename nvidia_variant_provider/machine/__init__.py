"""What a machine has, and which variant properties it supports."""
