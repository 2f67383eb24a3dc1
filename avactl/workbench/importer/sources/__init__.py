"""Conversion of source objects to specs, by kind."""
