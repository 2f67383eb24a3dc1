"""Which cluster a command talks to, and what it refuses."""
