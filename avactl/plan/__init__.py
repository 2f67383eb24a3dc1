"""Will it run: what the scheduler would do with a change, by its own engine; and pictures of clusters to ask it on."""
