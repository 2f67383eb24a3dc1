"""Istio for tests: its control plane, built from the pinned Go module, and an Envoy as its gateway on loopback."""

from tools.istio.gateway import MODULE, Istio, build

__all__ = ["MODULE", "Istio", "build"]
