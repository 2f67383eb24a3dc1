"""CEL expressions of device selectors: compiler and values."""
