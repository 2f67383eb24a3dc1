"""An environment with deep-learning frameworks, for tests that really train."""
