"""Checks of a live cluster against the specs, and what the specs expect of it: `avactl doctor`, `avactl secrets`."""
