"""Check whether pinned releases run on machines, and suggest ones that do."""
