"""One file per object, written atomically."""
