"""Delivery of models: publication of versions, and the decisions of pipelines."""
