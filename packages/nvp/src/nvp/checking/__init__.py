"""Check whether pinned releases run on machines, and suggest releases that do."""
