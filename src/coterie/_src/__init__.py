"""Everything behind the public names of `coterie`. Private: it may change in any version."""
