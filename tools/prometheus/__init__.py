"""Prometheus for tests: a binary built from its pinned Go module, and a server on loopback."""

from tools.prometheus.server import Prometheus, build_binary, configuration

__all__ = ["Prometheus", "build_binary", "configuration"]
