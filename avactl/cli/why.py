"""`avactl why`: why a pod or a job does not run, as the scheduler last said it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from avactl.cli.common import USAGE, colour, fail
from avactl.cli.viewing import Context, Kubeconfig, connection, refused

if TYPE_CHECKING:
    from avactl.kube.access import Access

_JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name", "avactl.dev/gang", "avactl.dev/name")


class Row(NamedTuple):
    """Pods of which the same is to be said."""

    pods: list[str]
    state: str
    age: str
    words: str


def why(
    name: Annotated[str, typer.Argument(help="A pod, a Job, or a TrainingJob; `NAMESPACE/NAME` names its namespace.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace.")] = "default",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Say why a pod or a job waits, and where the rest of it runs."""
    if "/" in name:
        namespace, name = name.split("/", 1)
    pods = asyncio.run(_pods(connection(kubeconfig, context), namespace))
    mine = select(pods, name)
    if not mine:
        fail(f"there is no pod or job {name} in namespace {namespace}", USAGE, "`-n NAMESPACE` looks elsewhere")
    _print(f"{namespace}/{name}", rows(mine, datetime.now(UTC)))


async def _pods(access: Access, namespace: str) -> list[dict[str, Any]]:
    from avactl.kube.client import ApiError, Client, UnreachableError

    async with Client(access, connections=1) as client:
        try:
            answer = await client.request("GET", f"/api/v1/namespaces/{namespace}/pods")
        except (ApiError, UnreachableError) as error:
            refused(error, access)
    items: list[dict[str, Any]] = answer["items"]
    return items


def select(pods: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The pod of that name, else those of the job of that name."""
    named = [pod for pod in pods if pod["metadata"]["name"] == name]
    if named:
        return named
    labels = [(pod, pod["metadata"].get("labels") or {}) for pod in pods]
    return [pod for pod, have in labels if any(have.get(label) == name for label in _JOB_LABELS)]


def rows(pods: list[dict[str, Any]], now: datetime) -> list[Row]:
    """Pods of which the same is to be said, those that wait first."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for pod in pods:
        groups.setdefault(_state(pod), []).append(pod)
    found = []
    for (state, words), group in sorted(groups.items(), key=lambda each: (each[0][0] != "waits", each[0])):
        oldest = min(pod["metadata"]["creationTimestamp"] for pod in group)
        age = (now - datetime.fromisoformat(oldest)).total_seconds()
        found.append(Row(sorted((pod["metadata"]["name"] for pod in group), key=_natural), state, _span(age), words))
    return found


def _state(pod: dict[str, Any]) -> tuple[str, str]:
    status, node = pod.get("status") or {}, pod["spec"].get("nodeName")
    if "deletionTimestamp" in pod["metadata"]:
        return "ends", "it is being deleted"
    if status.get("phase") in ("Succeeded", "Failed"):
        return "ended", status.get("message") or status["phase"].lower()
    if node:
        devices = (pod["metadata"].get("annotations") or {}).get("avactl.dev/devices")
        return "has a node", f"{node}{f', GPUs {devices}' if devices else ''}"
    if pod["spec"].get("schedulingGates"):
        gates = ", ".join(gate["name"] for gate in pod["spec"]["schedulingGates"])
        return "waits", f"held back by scheduling gates: {gates}"
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return "waits", condition.get("message") or condition.get("reason") or ""
    scheduler = pod["spec"].get("schedulerName")
    return "waits", f"scheduler `{scheduler}` has not said anything about it yet"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def _natural(name: str) -> list[tuple[bool, int, str]]:
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split("-")]


def _print(title: str, found: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_edge=False)
    for column in ("pods", "state", "since", "why or where"):
        table.add_column(column, overflow="fold", no_wrap=column in ("state", "since"))
    for row in found:
        few = ", ".join(row.pods) if len(row.pods) < 3 else f"{row.pods[0]} … {row.pods[-1]} ({len(row.pods)})"
        table.add_row(few, row.state, row.age, row.words)
    width = None if colour() else 200
    Console(highlight=False, markup=False, no_color=not colour(), width=width).print(table)
