"""Pulumi resources and stacks."""
