"""`timeouts` of HTTPRoutes on a real gateway: Traefik does not support them, and says so."""

from __future__ import annotations

import pytest

from avactl.contracts.names import TEAM_LABEL
from tools.controlplane import ControlPlane
from tools.traefik import CLASS, Traefik
from tools.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]


def test_traefik_declares_no_timeouts_of_routes(serving_plane: ControlPlane) -> None:
    gateway = Traefik(serving_plane, "a.example.com", namespace="gateways", name="public", team_label=TEAM_LABEL)
    try:
        with serving_plane.client() as kube:

            def features() -> set[str]:
                status = kube.get("gateway.networking.k8s.io/v1", "GatewayClass", CLASS).get("status") or {}
                return {each["name"] for each in status.get("supportedFeatures") or ()}

            found = wait_until(features)
    finally:
        gateway.close()
    assert "HTTPRouteMethodMatching" in found
    # Once it has them, docs/serving.md is wrong, and a route with a timeout can be tested here.
    assert not {"HTTPRouteRequestTimeout", "HTTPRouteBackendTimeout"} & found
