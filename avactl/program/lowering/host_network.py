"""The network of the machine instead of one of the pod's own: allocated ports, and what must allow it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

from avactl.diagnostics import Diagnostic, Note
from avactl.program.capacity import fit
from avactl.program.capacity.capacity import gpu_model
from avactl.program.manifest import Body
from avactl.program.program import Item, Program
from avactl.program.workload import WorkloadRole
from avactl.spec.schema.compute import HostNetwork

FIRST, LAST = 20_000, 29_999
"""Allocated ports: below the NodePorts of Services (30000–32767) and the kernel's own choice (32768–60999)."""
_NEARBY_PORTS = 100
"""Ports of which a free one is suggested."""


def host_port(item: Item, wanted: HostNetwork) -> int:
    """Return the port that the pods of a spec listen on."""
    if wanted.port is not None:
        return wanted.port
    return FIRST + zlib.crc32(f"{item.ns}/{item.kind}/{item.name}".encode()) % (LAST - FIRST + 1)


def with_host_network(pod: Body, port: int | None) -> Body:
    """Put a pod into the machine's network. With `port`, no two pods with that port run on one machine.

    Kubernetes compares declared host ports, and so does avactl's scheduler.
    """
    fields: Body = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if port is None:
        return {**pod, **fields}
    ports = [{"name": "rendezvous", "containerPort": port, "hostPort": port}]
    # Containers share the network; schedulers do not look at the ports of sidecars in all versions.
    first, *others = pod["containers"]
    return {**pod, **fields, "containers": [{**first, "ports": ports}, *others]}


class OnHostNetwork(Protocol):
    """A spec whose pods can be in the machines' network."""

    @property
    def host_network(self) -> HostNetwork | None: ...


def _wanted_network(item: Item) -> HostNetwork | None:
    found: HostNetwork | None = getattr(item.spec, "host_network", None)
    return found


def _listening_port(item: Item, program: Program) -> tuple[str, int] | None:
    """Cluster and port of a spec in the machines' network."""
    wanted = _wanted_network(item)
    return None if wanted is None else (item.cluster, host_port(item, wanted))


def _first_specs(program: Program, kind: str) -> dict[tuple[str, int], tuple[str, str, str]]:
    """Return the keys of the first specs of a kind, by cluster and port."""

    def collect() -> dict[tuple[str, int], tuple[str, str, str]]:
        found: dict[tuple[str, int], tuple[str, str, str]] = {}
        for item in program.of(kind):
            place = program.derive(item, _listening_port)
            if place is not None:
                found.setdefault(place, item.key)
        return found

    return program.memo(("host ports", kind), collect)


def host_network_problems(
    item: Item[OnHostNetwork], program: Program, listening: Sequence[WorkloadRole]
) -> Iterator[Diagnostic]:
    """Yield what is in the way of a spec in the machines' network. `listening`: its pods that listen on the port."""
    wanted = item.spec.host_network
    if wanted is None:
        return
    port = host_port(item, wanted)
    team = program.team(str(item.team))
    entry = next(((at, each) for at, each in enumerate(team.spec.namespaces or ()) if each.name == item.ns), None)
    if entry is None or not entry[1].host_network:
        at = ("spec",) if entry is None else ("spec", "namespaces", entry[0])
        yield Diagnostic(
            "host-network-not-allowed",
            f"namespace {item.ns} of team {team.name} does not allow the host's network",
            item.span("spec", "hostNetwork", key=True),
            hint=f"add `namespaces: [{{name: NAME, hostNetwork: true}}]` to Team {team.name}, and write "
            "`metadata: {namespace: NAME}`; or remove the key",
            notes=(Note(team.span(*at, key=entry is None), "the namespace"),),
        )
    first = _first_specs(program, item.kind)[item.cluster, port]
    if listening and first != item.key:
        yield _conflict_problem(item, program, port, program.get(item.kind, first[2], first[1]))
    yield from _too_few_machines(item, program, port, listening)


def _network_path(item: Item) -> tuple[str, ...]:
    wanted = _wanted_network(item)
    return ("spec", "hostNetwork", "port") if wanted is not None and wanted.port else ("spec", "hostNetwork")


def _conflict_problem(item: Item, program: Program, port: int, other: Item) -> Diagnostic:
    used = _first_specs(program, item.kind)
    near = islice(chain(range(port, LAST + 1), range(FIRST, port)), _NEARBY_PORTS)
    free = next((number for number in near if (item.cluster, number) not in used), None)
    return Diagnostic(
        "host-port-conflict",
        f"{item} and {other} both use port {port} of the machines: no machine can run pods of both",
        item.span(*_network_path(item)),
        hint=f"write `hostNetwork: {{port: {free}}}`" if free else "write another `hostNetwork: {port: …}`",
        notes=(Note(other.span(*_network_path(other)), str(other)),),
    )


def _too_few_machines(
    item: Item, program: Program, port: int, listening: Sequence[WorkloadRole]
) -> Iterator[Diagnostic]:
    if fit.unknown_capacity(program) or not listening:
        return
    machines: dict[str, int] = {}
    for role in listening:
        compute = role.compute
        if not compute.gpus and compute.pool is None:
            return  # machines that are not declared
        model = gpu_model(program, item.cluster, compute)
        found = fit.machine_offers(program, item.cluster, model, compute.pool, compute.tolerates)
        machines |= {offer.pool.name: offer.machines for offer in found}
    count, most = sum(role.least for role in listening), sum(machines.values())
    if count > most:
        yield Diagnostic(
            "gang-never-fits",
            f"{count} pods of {item} share port {port} of the machines, so each needs a machine of its own: "
            f"there are {most}",
            item.span("spec", "hostNetwork", key=True),
            hint="use fewer pods with more GPUs each, or remove `hostNetwork`",
        )
