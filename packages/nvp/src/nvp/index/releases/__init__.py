"""List the releases of a project with the builds that a machine can run."""
