"""Tools to build and test avactl."""
