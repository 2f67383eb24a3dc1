"""Processing: the objects of a version become those of the next one, by steps."""
