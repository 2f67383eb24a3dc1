"""Canary by weights of HTTPRoute and GRPCRoute, and blue-green."""

from __future__ import annotations

from typing import Any

from tests.serving.world import ROUTES, World

EXPOSED = "replicas: 4\n  expose: {host: web.ai.example.com, paths: [/v1]}"
CANARY = "{canary: {steps: [{percent: 5, pause: 2s}, {percent: 50, pause: 2s}]}}"


def hosts(spec: str, world: World) -> str:
    """Give the team a host of its own."""
    return spec.replace("web.ai", f"{world.team}.ai")


def test_weights_follow_the_steps_and_the_stable_version_keeps_its_pods(world: World) -> None:
    world.start()
    world.deploy(hosts(world.service(1, CANARY, EXPOSED), world))
    world.until(lambda: world.weights() == {"1": 100})
    world.accept()
    world.until(lambda: world.settled("1"))

    seen: list[dict[str, int]] = []

    def done() -> bool:
        (weights,), ready = world.weights_and_ready("HTTPRoute")
        if weights not in seen:
            seen.append(weights)
        assert weights.get("2", 0) == 0 or ready.get("2", 0) >= 1, "requests before pods"
        return world.settled("2") and weights == {"2": 100}

    world.deploy(hosts(world.service(2, CANARY, EXPOSED), world))
    world.until(done)
    path = [each for each in seen if each in ({"1": 95, "2": 5}, {"1": 50, "2": 50}, {"2": 100})]
    assert path == [{"1": 95, "2": 5}, {"1": 50, "2": 50}, {"2": 100}]
    route = world.kube.get("gateway.networking.k8s.io/v1", "HTTPRoute", "web-rollout", world.team)
    assert [match["path"]["value"] for match in route["spec"]["rules"][0]["matches"]] == ["/v1"]

    # A changed path reaches the route outside of rollouts, too.
    world.deploy(hosts(world.service(2, CANARY, EXPOSED.replace("/v1", "/v2")), world))

    def paths() -> list[str]:
        route = world.kube.get("gateway.networking.k8s.io/v1", "HTTPRoute", "web-rollout", world.team)
        return [match["path"]["value"] for match in route["spec"]["rules"][0]["matches"]]

    world.until(lambda: paths() == ["/v2"])
    assert world.weights() == {"2": 100}


def test_requests_return_before_the_new_version_stops(world: World) -> None:
    world.start()
    slow = CANARY.replace("2s", "1h")
    world.deploy(hosts(world.service(1, slow, EXPOSED), world))
    world.until(lambda: world.weights() == {"1": 100})
    world.accept()
    world.deploy(hosts(world.service(2, slow, EXPOSED), world))
    world.until(lambda: world.weights() == {"1": 95, "2": 5})
    assert world.ready() == {"1": 4, "2": 1}

    def back() -> bool:
        (weights,), ready = world.weights_and_ready("HTTPRoute")
        assert ready["1"] == 4
        assert weights.get("2", 0) == 0 or ready.get("2") == 1
        return world.settled("1") and weights == {"1": 100}

    world.deploy(hosts(world.service(1, slow, EXPOSED), world))
    world.until(back)


def test_a_gateway_that_is_away(world: World) -> None:
    world.start()
    world.deploy(hosts(world.service(1, CANARY, EXPOSED), world))
    world.until(lambda: world.settled("1"))
    world.deploy(hosts(world.service(2, CANARY, EXPOSED), world))
    world.until(lambda: world.condition()[1] == "GatewayUnavailable")
    assert "no gateway has accepted HTTPRoute web-rollout" in world.condition()[2]
    assert "RolloutGatewayUnavailable" in world.reasons()
    assert (world.ready(), world.weights()) == ({"1": 4}, {"1": 100})
    world.accept()
    world.until(lambda: world.settled("2"))


def test_in_place_behind_a_gateway(world: World) -> None:
    """Without room, requests follow the pods; no version gets requests without a ready pod."""
    world.start()
    canary = CANARY.replace("canary: {", "canary: {inPlace: true, ")
    world.deploy(hosts(world.service(1, canary, EXPOSED), world))
    world.until(lambda: world.weights() == {"1": 100})
    world.accept()
    world.until(lambda: world.settled("1"))
    metadata = {"name": "pods", "namespace": world.team}
    world.kube.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": "4"}}}
    )

    def used() -> Any:
        return world.kube.get("v1", "ResourceQuota", "pods", world.team).get("status", {}).get("used", {}).get("pods")

    world.until(lambda: used() == "4")

    def done() -> bool:
        (weights,), ready = world.weights_and_ready("HTTPRoute")
        assert all(ready.get(version) for version, weight in weights.items() if weight), (weights, ready)
        assert sum(ready.values()) >= 3
        return world.settled("2") and weights == {"2": 100}

    world.deploy(hosts(world.service(2, canary, EXPOSED), world))
    world.until(done)


def test_blue_green_switches_and_keeps_the_old_version(world: World) -> None:
    world.start()
    slow = "{blueGreen: {keep: 1h}}"

    def selected() -> set[str]:
        names = {each["spec"]["selector"]["matchLabels"]["pod-template-hash"]: v for v, each in world.sets().items()}
        services = [world.kube.get("v1", "Service", name, world.team) for name in ("web", "web-headless")]
        found = [(each["spec"].get("selector") or {}).get("pod-template-hash", "") for each in services]
        return {names.get(each, each) for each in found}

    world.deploy(world.service(1, slow))
    world.until(lambda: world.settled("1") and selected() == {"1"})
    world.deploy(world.service(2, slow))
    world.until(lambda: world.state().get("reached") and selected() == {"2"})
    assert world.ready() == {"1": 4, "2": 4}
    # Back to the kept version at once, which has all of its pods.
    world.deploy(world.service(1, slow))
    world.until(lambda: world.settled("1") and selected() == {"1"})
    world.deploy(world.service(2, slow.replace("1h", "1s")))
    world.until(lambda: world.settled("2") and selected() == {"2"})


BOTH = """replicas: 4
  expose: {host: web.ai.example.com, grpc: {host: web-grpc.ai.example.com, services: [digits.Digits, digits.Health]}}"""
KINDS = ("HTTPRoute", "GRPCRoute")


def both(spec: str, world: World) -> str:
    """Give the team hosts of its own."""
    return hosts(spec, world).replace("web-grpc.ai", f"{world.team}-grpc.ai")


def test_weights_of_http_and_grpc_move_together(world: World) -> None:
    world.start()
    world.deploy(both(world.service(1, CANARY, BOTH), world))
    world.until(lambda: all(world.weights(kind) == {"1": 100} for kind in KINDS))
    for kind in KINDS:
        world.accept(kind)
    world.until(lambda: world.settled("1"))

    seen: list[tuple[dict[str, int], ...]] = []

    def done() -> bool:
        # The daemon counts the step only once both have its weights.
        state = world.state()
        if state.get("phase") == "stepping" and state.get("reached"):
            found = tuple(world.weights(kind) for kind in KINDS)
            if found not in seen and world.state() == state:
                seen.append(found)
        return world.settled("2") and all(world.weights(kind) == {"2": 100} for kind in KINDS)

    world.deploy(both(world.service(2, CANARY, BOTH), world))
    world.until(done)
    assert seen == [({"1": 95, "2": 5},) * 2, ({"1": 50, "2": 50},) * 2]
    route = world.kube.get(ROUTES, "GRPCRoute", "web-rollout", world.team)
    (rule,) = route["spec"]["rules"]
    assert [match["method"]["service"] for match in rule["matches"]] == ["digits.Digits", "digits.Health"]
    (backend,) = rule["backendRefs"]
    service = world.kube.get("v1", "Service", backend["name"], world.team)
    assert {each["name"]: each["port"] for each in service["spec"]["ports"]} == {"http": 8080, "grpc": 9090}
    assert backend["port"] == 9090

    # Other services reach the route outside of rollouts, too.
    world.deploy(both(world.service(2, CANARY, BOTH.replace(", digits.Health", "")), world))

    def services() -> list[str]:
        (rule,) = world.kube.get(ROUTES, "GRPCRoute", "web-rollout", world.team)["spec"]["rules"]
        return [match["method"]["service"] for match in rule["matches"]]

    world.until(lambda: services() == ["digits.Digits"])
    assert world.weights("GRPCRoute") == {"2": 100}


def test_a_grpc_route_that_no_gateway_accepts(world: World) -> None:
    """For example, because another route has its host for HTTP."""
    world.start()
    world.deploy(both(world.service(1, CANARY, BOTH), world))
    world.until(lambda: all(world.weights(kind) == {"1": 100} for kind in KINDS))
    world.accept("HTTPRoute")
    world.until(lambda: world.settled("1"))
    world.deploy(both(world.service(2, CANARY, BOTH), world))
    world.until(lambda: world.condition()[1] == "GatewayUnavailable")
    assert world.condition()[2] == "no gateway has accepted GRPCRoute web-rollout"
    assert world.ready() == {"1": 4}
    world.accept("GRPCRoute")
    world.until(lambda: world.settled("2"))

    # One that is deleted during a step: the rollout goes on once it is there again.
    world.deploy(both(world.service(3, CANARY.replace("2s", "1h"), BOTH), world))
    world.until(lambda: all(world.weights(kind) == {"2": 95, "3": 5} for kind in KINDS))
    world.kube.delete(ROUTES, "GRPCRoute", "web-rollout", world.team)
    world.until(
        lambda: (
            world.condition()[1:]
            == (
                "GatewayUnavailable",
                "GRPCRoute web-rollout does not exist: apply the specs, and install the Gateway API",
            )
        )
    )
    world.deploy(both(world.service(3, CANARY, BOTH), world))
    world.accept("GRPCRoute")
    world.until(lambda: world.settled("3") and all(world.weights(kind) == {"3": 100} for kind in KINDS))


def test_only_grpc_is_exposed(world: World) -> None:
    world.start()
    only = BOTH.replace("host: web.ai.example.com, ", "")
    world.deploy(both(world.service(1, CANARY, only), world))
    world.until(lambda: world.weights("GRPCRoute") == {"1": 100})
    world.accept("GRPCRoute")
    world.deploy(both(world.service(2, CANARY, only), world))
    world.until(lambda: world.settled("2") and world.weights("GRPCRoute") == {"2": 100})
    assert world.kube.find(ROUTES, "HTTPRoute", "web-rollout", world.team) is None
