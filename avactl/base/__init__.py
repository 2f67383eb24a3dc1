"""Small parts without knowledge of specs or clusters, used everywhere."""
