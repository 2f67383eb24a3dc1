"""Traefik for tests: a pinned binary, and a gateway (Gateway API) on loopback."""

from tools.traefik.build import build_binary
from tools.traefik.gateway import CLASS, Traefik, declare

__all__ = ["CLASS", "Traefik", "build_binary", "declare"]
