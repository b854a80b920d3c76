"""Documents for people: the matrix of a release, the difference of two."""
