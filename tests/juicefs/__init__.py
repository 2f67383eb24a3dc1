"""JuiceFS on real processes."""
