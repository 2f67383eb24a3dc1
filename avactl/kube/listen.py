"""Addresses to listen on."""

from __future__ import annotations


class ListenError(Exception):
    """The address cannot be listened on."""


def split_address(listen: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`. The host may be empty, and of IPv6, with or without brackets."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)
