"""The pods of compiled objects, as ends of connections."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.compiler import Compilation
from avactl.contracts.names import GANG_LABEL
from avactl.program.manifest import Body, templates_of
from tests.networks.evaluator import Network, Pod, Port

NAME, INSTANCE, COMPONENT = (f"app.kubernetes.io/{key}" for key in ("name", "instance", "component"))


def network_of(result: Compilation, cluster: str) -> Network:
    """Return the namespaces and policies of a cluster."""
    bodies = [each.body for each in result.manifests if each.cluster == cluster]
    spaces = {
        body["metadata"]["name"]: body["metadata"].get("labels", {}) for body in bodies if body["kind"] == "Namespace"
    }
    return Network(spaces, [body for body in bodies if body["kind"] == "NetworkPolicy"])


def pods_of(result: Compilation, cluster: str) -> dict[str, Pod]:
    """Return a pod of each template, by `NAMESPACE/NAME`; the further templates of an object have a number."""
    found: dict[str, Pod] = {}
    for manifest in result.manifests:
        if manifest.cluster == cluster and manifest.namespace is not None:
            for index, (_, template) in enumerate(templates_of(manifest.body)):
                name = f"{manifest.namespace}/{manifest.name}{f'-{index}' if index else ''}"
                assert name not in found, name
                found[name] = _pod(name, manifest.namespace, template, len(found))
    return found


def _pod(name: str, namespace: str, template: Body, index: int) -> Pod:
    spec = template["spec"]
    containers = [*spec["containers"], *spec.get("initContainers", ())]
    ports = tuple(
        Port(port["containerPort"], port.get("protocol", "TCP"), port.get("name", ""))
        for container in containers
        for port in container.get("ports") or ()
    )
    labels = template.get("metadata", {}).get("labels", {})
    address = f"10.0.{index // 250}.{index % 250 + 1}"
    return Pod(name, namespace, labels, address, ports, bool(spec.get("hostNetwork")))


def group_of(pod: Pod) -> str:
    """Return the name of what a pod is a part of: its gang or service; else its own name."""
    if gang := pod.labels.get(GANG_LABEL):
        return f"{pod.namespace} job {gang}"
    if pod.labels.get(NAME) == "servingdeployment":
        return f"{pod.namespace} service {pod.labels[INSTANCE]}"
    return pod.name


def pairs(pods: dict[str, Pod]) -> Iterator[tuple[Pod, Pod]]:
    """Yield each pair of different pods, both ways."""
    for source in pods.values():
        for destination in pods.values():
            if source != destination:
                yield source, destination
