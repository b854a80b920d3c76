"""Which label of a release fits a machine, and why the others do not."""
