"""Errors of parameter servers."""

from __future__ import annotations


class ServerError(Exception):
    """A parameter server has refused a request, is unreachable, or has lost its parameters."""
