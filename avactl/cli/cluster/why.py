"""`avactl why`: explain why a pod or job is pending, from the status set by the scheduler and pod controllers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from avactl.base.exit_codes import USAGE
from avactl.base.terminal import inert_text
from avactl.cli.cluster.cluster_session import (
    ClusterName,
    Context,
    Kubeconfig,
    age_text,
    connect,
    plain_text,
    tell_target,
    with_client,
    write,
)
from avactl.cli.common import exit_with
from avactl.contracts import names
from avactl.contracts.pod_annotations import DEVICES

if TYPE_CHECKING:
    from avactl.kube.client import Client
    from avactl.kube.identity import IdentityTarget
    from avactl.scheduler.inspection.pod_controllers import PodController

_JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name", names.GANG_LABEL, "app.kubernetes.io/instance")
_FIRST_STATES = ("refused", "waits")
"""States listed first, because they indicate a problem."""


class JobObjects(NamedTuple):
    """Objects of a job from the API server."""

    pods: list[dict[str, Any]]
    makers: list[PodController]
    """Controllers that lack pods."""
    devices: dict[str, str]
    """Devices by ResourceClaim."""


class WhyRow(NamedTuple):
    """Pods with the same state and reason."""

    pods: list[str]
    state: str
    age: str
    words: str


def why(
    name: Annotated[
        str,
        typer.Argument(help="Pod, job, service or workspace: NAME or NAMESPACE/NAME."),
    ],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace.")] = "default",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: ClusterName = "",
) -> None:
    """Explain why a pod or job is pending, and show where its other pods run."""
    if "/" in name:
        namespace, name = name.split("/", 1)
    if not name or not namespace or "/" in name:
        exit_with("the name of the pod or job is empty or malformed", USAGE, "write NAME, or NAMESPACE/NAME")

    async def find(client: Client, target: IdentityTarget) -> JobObjects:
        tell_target(target)
        return await _find(client, namespace, name)

    found = with_client(connect(kubeconfig, context, cluster), find, cluster)
    if not found.pods and not found.makers:
        exit_with(f"no pod or job {name} in namespace {namespace}", USAGE, "use `-n NAMESPACE` for another namespace")
    _print(f"{namespace}/{name}", group_rows(found, datetime.now(UTC)))


async def _find(client: Client, namespace: str, name: str) -> JobObjects:
    from avactl.scheduler.inspection import pod_controllers

    answer = await client.request("GET", f"/api/v1/namespaces/{namespace}/pods")
    pods = select(answer["items"] or [], name)
    exact = any(pod["metadata"]["name"] == name for pod in pods)
    lacking = [] if exact else await pod_controllers.short(client, namespace, name)
    has = any(pod["spec"].get("resourceClaims") and pod["spec"].get("nodeName") for pod in pods)
    return JobObjects(pods, lacking, await _claim_devices(client, namespace) if has else {})


async def _claim_devices(client: Client, namespace: str) -> dict[str, str]:
    """Return the devices of ResourceClaims; none if the API server does not allow reading them."""
    from avactl.kube.client import ApiError

    try:
        answer = await client.request("GET", f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims")
    except ApiError:
        return {}
    found = {}
    for item in answer["items"] or ():
        results = ((item.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
        found[item["metadata"]["name"]] = ", ".join(sorted((each["device"] for each in results), key=_natural_key))
    return found


def select(pods: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the pod with that name, else the pods of the job or controller with that name."""
    named = [pod for pod in pods if pod["metadata"]["name"] == name]
    return named or [pod for pod in pods if name in _claim_names(pod)]


def _claim_names(pod: dict[str, Any]) -> list[str]:
    from avactl.contracts.scheduling import KNOWN_GANG_KINDS

    labels = pod["metadata"].get("labels") or {}
    known = (*_JOB_LABELS, *(kind.label for kind in KNOWN_GANG_KINDS))
    found = [labels[label] for label in known if label in labels]
    for owner in pod["metadata"].get("ownerReferences") or ():
        # A ReplicaSet's name is its Deployment's name plus the hash of the template.
        found += [owner["name"], owner["name"].removesuffix(f"-{labels.get('pod-template-hash', '')}")]
    return found


def group_rows(found: JobObjects, now: datetime) -> list[WhyRow]:
    """Group pods with the same state and reason, and controllers that lack pods; waiting ones first."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for pod in found.pods:
        groups.setdefault(_pod_state(pod, found.devices), []).append(pod)
    told = []
    for (state, words), group in groups.items():
        oldest = min(pod["metadata"]["creationTimestamp"] for pod in group)
        mine = sorted((pod["metadata"]["name"] for pod in group), key=_natural_key)
        told.append(WhyRow(mine, state, age_text(oldest, now), words))
    for maker in found.makers:
        if maker.state == "refused" or not found.pods:
            told.append(WhyRow([maker.name], maker.state, age_text(maker.since, now), maker.words))
    return sorted(told, key=lambda row: (row.state not in _FIRST_STATES, row.state, row.words))


def _pod_state(pod: dict[str, Any], devices: dict[str, str]) -> tuple[str, str]:
    status, node = pod.get("status") or {}, pod["spec"].get("nodeName")
    if "deletionTimestamp" in pod["metadata"]:
        return "ends", ": ".join(filter(None, ("it is being deleted", _stop_reason(status))))
    if status.get("phase") in ("Succeeded", "Failed"):
        return "ended", status.get("message") or _stop_reason(status) or status["phase"].lower()
    if node:
        return "has a node", ", ".join(filter(None, (node, _pod_gpus(pod, devices))))
    if pod["spec"].get("schedulingGates"):
        gates = ", ".join(gate["name"] for gate in pod["spec"]["schedulingGates"])
        return "waits", f"held back by scheduling gates: {gates}"
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return "waits", condition.get("message") or condition.get("reason") or ""
    scheduler = pod["spec"].get("schedulerName")
    return "waits", f"scheduler `{scheduler}` has not processed it yet"


def _stop_reason(status: dict[str, Any]) -> str:
    """Return the reason why a pod is stopped; empty if unknown."""
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return condition.get("message") or ""
    return ""


def _pod_gpus(pod: dict[str, Any], devices: dict[str, str]) -> str:
    """Return the GPUs of a running pod, by index or by the devices of its claims."""
    indexes = (pod["metadata"].get("annotations") or {}).get(DEVICES.name)
    made = {each["name"]: each.get("resourceClaimName") for each in pod["status"].get("resourceClaimStatuses") or ()}
    claims = (
        str(each.get("resourceClaimName") or made.get(each["name"])) for each in pod["spec"].get("resourceClaims") or ()
    )
    held = [devices[claim] for claim in claims if devices.get(claim)]
    return ", ".join([*([f"GPUs {indexes}"] if indexes else []), *([f"devices {', '.join(held)}"] if held else [])])


def _natural_key(name: str) -> list[tuple[bool, int, str]]:
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in name.split("-")]


def _print(title: str, found: list[WhyRow]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("pods", "state", "since", "why or where"):
        table.add_column(column, overflow="fold", no_wrap=column in ("state", "since"))
    for row in found:
        few = ", ".join(row.pods) if len(row.pods) < 3 else f"{row.pods[0]} … {row.pods[-1]} ({len(row.pods)})"
        table.add_row(plain_text(few), row.state, row.age, plain_text(row.words))
    print(inert_text(plain_text(title)))
    write(table)
