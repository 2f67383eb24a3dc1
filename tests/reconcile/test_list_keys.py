"""Changed keys of lists, which no apply can merge: by hand, in git after an adoption, and beside other appliers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import yaml

from avactl.apply.reconcile.reporting.report import StepResult, as_text
from tests.reconcile.world import World, content

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("reconcile")]

SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec: {selector: {app: NAME}, ports: [{name: http, port: 80, targetPort: 8080}]}
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  replicas: 0
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: web
        image: registry.example.com/web:1
        env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
        ports: [{name: http, containerPort: 8080}]
        volumeMounts: [{name: tmp, mountPath: /tmp}]
      volumes: [{name: tmp, emptyDir: {}}]
"""
Edit = Callable[[dict[str, Any]], None]


def _port(**fields: Any) -> Edit:
    return lambda body: body["spec"]["ports"][0].update(fields)


def _pod(edit: Edit) -> Edit:
    return lambda body: edit(body["spec"]["template"]["spec"])


def _container(**fields: Any) -> Edit:
    return _pod(lambda pod: pod["containers"][0].update(fields))


def _rename_volume(pod: dict[str, Any]) -> None:
    pod["volumes"][0]["name"] = pod["containers"][0]["volumeMounts"][0]["name"] = "other"


EDITS: dict[str, tuple[str, Edit]] = {
    "number": (SERVICE, _port(port=9090)),
    "protocol": (SERVICE, _port(protocol="UDP")),
    "number-and-name": (SERVICE, _port(name="web", port=9090)),
    "container": (DEPLOYMENT, _container(name="server")),
    "container-port": (DEPLOYMENT, _container(ports=[{"name": "http", "containerPort": 8081}])),
    "volume": (DEPLOYMENT, _pod(_rename_volume)),
    "mount": (DEPLOYMENT, _pod(lambda pod: pod["containers"][0]["volumeMounts"][0].update(mountPath="/var/tmp"))),
}
"""Edits of an object, each with a name of its own."""


def _objects(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    return {name: yaml.safe_load(EDITS[name][0].replace("NAME", name)) for name in names}


def _write(world: World, body: dict[str, Any], manager: str) -> None:
    """Create or replace an object, as a program that knows no server-side apply does."""
    body = {**body, "metadata": {**body["metadata"], "namespace": f"{world.name}-vision"}}
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    path = world.kube.path(body["apiVersion"], body["kind"], name, namespace)
    create = "resourceVersion" not in body["metadata"]
    # Without a version: the controller may write the status meanwhile.
    body["metadata"].pop("resourceVersion", None)
    method, path = ("POST", path.rpartition("/")[0]) if create else ("PUT", path)
    world.kube.request(method, path, body=body, query={"fieldManager": manager})


def _live(world: World, body: dict[str, Any]) -> dict[str, Any]:
    return world.kube.get(body["apiVersion"], body["kind"], body["metadata"]["name"], f"{world.name}-vision")


def _reconcile(world: World) -> StepResult:
    """Reconcile, and check that another run has nothing to do."""
    result = world.once(wait=False)
    assert result.complete, as_text(result, False)
    again = world.once(wait=False)
    assert again.complete, as_text(again, False)
    assert not again.changed, as_text(again, False)
    return result


def test_keys_that_are_changed_by_hand_are_reverted_in_one_run(world: World) -> None:
    bodies = _objects(EDITS)
    world.commit_objects(bodies.values())
    assert world.once(wait=False).complete
    before = {name: content(_live(world, body)) for name, body in bodies.items()}
    for name, body in bodies.items():
        live = _live(world, body)
        EDITS[name][1](live)
        _write(world, live, "kubectl-edit")
    result = _reconcile(world)
    assert {step.key.name for step in result.drift} == set(EDITS)
    assert {name: content(_live(world, body)) for name, body in bodies.items()} == before


def test_keys_change_after_objects_of_kubectl_apply_were_adopted(world: World) -> None:
    bodies = _objects(EDITS)
    world.commit({"platform.yaml": world.specs()})
    assert world.once(wait=False).complete
    for body in bodies.values():
        _write(world, body, "kubectl-client-side-apply")
    world.commit_objects(bodies.values())
    _reconcile(world)
    for name, body in bodies.items():
        EDITS[name][1](body)
    world.commit_objects(bodies.values())
    _reconcile(world)
    world.want_state_of_git("lab")
    for name, body in bodies.items():
        assert _lengths(_live(world, body)) == _lengths(body), name


def _in(world: World, body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "namespace": f"{world.name}-vision"}}


def _lengths(body: dict[str, Any]) -> list[int]:
    """Return the lengths of the lists with keys."""
    if body["kind"] == "Service":
        return [len(body["spec"]["ports"])]
    pod = body["spec"]["template"]["spec"]
    container = pod["containers"][0]
    return [len(each) for each in (pod["containers"], pod["volumes"], container["ports"], container["volumeMounts"])]


@pytest.mark.parametrize("manager", ["kubectl", "helm", "argocd-controller"])
def test_keys_change_in_git_beside_another_server_side_applier(world: World, manager: str) -> None:
    """What only a controller sets stays: here a container that it injects."""
    bodies = _objects(("number", "container-port"))
    world.commit_objects(bodies.values())
    assert world.once(wait=False).complete
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    injected = {"name": "proxy", "image": "registry.example.com/proxy:1", "env": env}
    for name, body in bodies.items():
        theirs = _in(world, yaml.safe_load(yaml.safe_dump(body)))
        if name == "container-port" and manager == "argocd-controller":
            theirs["spec"]["template"]["spec"]["containers"].append(injected)
        world.kube.apply(theirs, field_manager=manager, force=True)
        EDITS[name][1](body)
    world.commit_objects(bodies.values())
    _reconcile(world)
    service, deployment = (_live(world, body) for body in bodies.values())
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("http", 9090)]
    containers = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["containers"]}
    assert [port["containerPort"] for port in containers["web"]["ports"]] == [8081]
    assert ("proxy" in containers) == (manager == "argocd-controller")


def test_an_operator_that_renumbers_a_port_is_reverted(world: World) -> None:
    """A controller's own fields stay, but not a port that excludes the declared one."""
    bodies = _objects(("number",))
    world.commit_objects(bodies.values())
    assert world.once(wait=False).complete
    live = _live(world, bodies["number"])
    EDITS["number"][1](live)
    live["metadata"]["annotations"] = {"example.com/seen": "yes"}
    _write(world, live, "some-operator")
    result = _reconcile(world)
    assert "by some-operator" in as_text(result, False)
    after = _live(world, bodies["number"])
    assert [port["port"] for port in after["spec"]["ports"]] == [80]
    assert after["metadata"]["annotations"]["example.com/seen"] == "yes"
