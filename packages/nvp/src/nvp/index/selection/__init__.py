"""Selecting what an installer sees of each release: the builds that fit, best first."""
