"""The facts about a machine, and the variant properties that it supports."""
