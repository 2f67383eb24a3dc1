"""Typed fields and models that the kinds of specs are made of."""
