"""The documented query of a gateway: requests that no pod answers are counted, the first one too."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.cluster_fixtures import building
from tests.conftest import ROOT
from tests.serving import world as worlds
from tests.serving.world import World
from tools.prometheus import Prometheus
from tools.prometheus import build_binary as build_prometheus
from tools.traefik import Traefik
from tools.traefik import build_binary as fetch_traefik

# Prometheus takes five minutes to build: too long for the first run of `make test`.
pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("serving-load")]
WINDOW = "6s"


@pytest.fixture
def built(request: pytest.FixtureRequest) -> None:
    with building(request):
        fetch_traefik()
        build_prometheus()


def documented() -> str:
    """The query for Traefik in the documentation, with a shorter window."""
    found = re.search(r"requests: >-.*Traefik.*\n(( {6}.*\n)+)", (ROOT / "docs" / "serving.md").read_text())
    assert found is not None
    return " ".join(found[1].split()).replace("2m", WINDOW)


@pytest.fixture
def gateway(world: World, built: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traefik]:
    """Two services without pods, under one host."""
    platform = re.sub(r"requests: '.*'", lambda _: f"requests: '{documented()}'", worlds.PLATFORM)
    monkeypatch.setattr(worlds, "PLATFORM", platform)
    host = f"{world.team}.ai.example.com"
    specs = ""
    for name in ("web", "web-2"):
        more = f"replicas: {{min: 0, max: 2}}\n  expose: {{host: {host}, paths: [/{name}]}}"
        text = world.service(1, "{rolling: {}}", more).replace("{name: web,", f"{{name: {name},")
        specs += text.replace("path: /health", "path: /health, startup: 2m")
    found = Traefik(world.plane, host, namespace="gateways", name="public", team_label="avactl.dev/team", throttle=0.2)
    try:
        world.deploy(specs)
        for name in ("web", "web-2"):
            metadata = {"name": name, "namespace": world.team}
            body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": 0}}
            world.kube.patch(body)
        world.until(lambda: not world.kube.list("v1", "Pod", world.team))
        yield found
    finally:
        found.close()


def test_the_query_sees_requests_that_no_pod_answers(world: World, gateway: Traefik) -> None:
    queries = {}
    for each in world.kube.list("keda.sh/v1alpha1", "ScaledObject", world.team):
        trigger = next(trigger for trigger in each["spec"]["triggers"] if trigger["name"] == "requests")
        queries[each["metadata"]["name"]] = trigger["metadata"]["query"]
    assert set(queries) == {"web", "web-2"}
    trusted = ssl.create_default_context(cafile=str(gateway.ca_file))

    def status(path: str) -> int:
        headers, names = {"Host": gateway.hosts[0]}, {"sni_hostname": gateway.hosts[0]}
        with httpx.Client(verify=trusted, trust_env=False) as client:
            return client.get(f"{gateway.url}{path}", headers=headers, extensions=names).status_code

    # Traefik has the routes once a path that no route has is told apart from one without pods.
    world.until(lambda: status("/nothing") == 404 and status("/web-2/x") == 503)
    with Prometheus(world.plane, 0.5, [gateway.metrics]) as prometheus:

        def value(name: str) -> float:
            """The value as KEDA takes it: no result is 0, and several are an error."""
            answer = httpx.get(
                f"{prometheus.url}/api/v1/query", params={"query": queries[name]}, trust_env=False
            ).json()
            assert answer["status"] == "success", answer
            assert len(answer["data"]["result"]) <= 1
            return sum(float(each["value"][1]) for each in answer["data"]["result"])

        world.until(lambda: value("web-2") > 0)
        world.until(lambda: value("web-2") == 0)
        for _ in range(2):  # the first request to the service, and one more
            assert value("web") == 0
            assert status("/web/v1") == 503
            world.until(lambda: value("web") > 0)
            assert value("web-2") == 0
            world.until(lambda: value("web") == 0)
            time.sleep(1)
            assert value("web") == 0
