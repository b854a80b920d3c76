"""Select the builds of each release that an installer sees, best first."""
