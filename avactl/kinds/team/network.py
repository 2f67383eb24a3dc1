"""Network policies that isolate tenants: default deny, plus the listed exceptions."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.contracts.names import EXPERIMENT, TEAM_LABEL
from avactl.program import registry
from avactl.program.lowering import k8s
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program, name_label
from avactl.program.workload import Lifecycle
from avactl.spec.platform.team import TeamSpec

METADATA_SERVICES = ("169.254.169.254", "100.100.100.200", "fd00:ec2::254")
"""Cloud metadata services, which hand out a machine's credentials (AWS, Azure, GCP; Alibaba Cloud; AWS over IPv6)."""

NODE_LOCAL_DNS = "169.254.20.10/32"
"""Address of NodeLocal DNSCache. Source: kubernetes.io/docs/tasks/administer-cluster/nodelocaldns"""


def network_policies(item: Item[TeamSpec], program: Program, cluster: str, namespace: str) -> list[Manifest]:
    """Return the policies of one namespace.

    Pods cannot reach cache tiers over the network: Alluxio trusts any user name that a client sends. Pods access a
    tier through FUSE on their machine, and only the directories of their volumes.
    """
    services = sorted({item.name, *_reachable_teams(program, cluster).get(item.name, ())})
    egress: list[Body] = [
        {
            "to": [_build_namespace("kube-system"), {"ipBlock": {"cidr": NODE_LOCAL_DNS}}],
            "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
        },
        {"to": [_build_teams(services)]},
    ]
    if blocks := _egress_blocks(program, cluster):
        egress.append({"to": [{"ipBlock": dict(block)} for block in blocks]})
    # The ports of jobs (masters, rendezvous, parameter servers, all-reduce) and of groups of model servers trust who
    # connects, so pods of both have policies of their own. Policies add up: no other may select them.
    closed = [*registry.workload_kinds(Lifecycle.JOB), *registry.workload_kinds(Lifecycle.SERVICE)]
    experiments = {"matchExpressions": [{"key": EXPERIMENT, "operator": "Exists"}]}
    wanted: list[tuple[str, Body]] = [
        ("default-deny", {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        (
            "allow-own",
            {
                "podSelector": _select_others(closed),
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [_build_teams([item.name])]}],
            },
        ),
        # Members start experiments, and cannot write policies.
        (
            "allow-experiments",
            {
                "podSelector": experiments,
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{"podSelector": experiments}]}],
            },
        ),
        ("allow-egress", {"podSelector": {}, "policyTypes": ["Egress"], "egress": egress}),
    ]
    if item.spec.talks_to:
        callers = [{"from": [_build_teams(sorted(set(item.spec.talks_to)))]}]
        # A session (a workspace) is one user's editor.
        guests = _select_others([*closed, *registry.workload_kinds(Lifecycle.SESSION)])
        wanted.append(("allow-teams", {"podSelector": guests, "policyTypes": ["Ingress"], "ingress": callers}))
    return [
        k8s.build_manifest(item, cluster, "networking.k8s.io/v1", "NetworkPolicy", name, namespace=namespace, spec=spec)
        for name, spec in wanted
    ]


def _select_others(kinds: list[str]) -> Body:
    """Return the selector of pods of no spec of these kinds."""
    names = sorted(map(name_label, kinds))
    return {"matchExpressions": [{"key": "app.kubernetes.io/name", "operator": "NotIn", "values": names}]}


def _build_namespace(name: str) -> Body:
    # The API server sets this label, so that a namespace cannot impersonate another.
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _build_teams(names: list[str]) -> Body:
    return {"namespaceSelector": {"matchExpressions": [{"key": TEAM_LABEL, "operator": "In", "values": names}]}}


def _reachable_teams(program: Program, cluster: str) -> dict[str, list[str]]:
    """Map each team to the other teams on a cluster that accept its traffic, by `talksTo` or a service's `exposeTo`.

    Both ends must allow a connection: ingress at the target, and egress at the source if `egressAllowed` excludes the
    pod network.
    """

    def make() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for team in program.teams(cluster):
            for caller in team.spec.talks_to:
                found.setdefault(caller, []).append(team.name)
        for kind in registry.workload_kinds(Lifecycle.SERVICE):
            for service in program.of(kind):
                if service.cluster == cluster and service.team is not None:
                    for caller in _exposed_to(service):
                        found.setdefault(caller, []).append(service.team)
        return found

    return program.memo(("reachable teams", cluster), make)


def _exposed_to(service: Item) -> Sequence[str]:
    workload = registry.get_kind(service.kind).workload
    return () if workload is None else workload.exposed_to(service)


def _egress_blocks(program: Program, cluster: str) -> list[Body]:
    """Return the blocks of `egressAllowed` without the metadata services that they include."""

    def make() -> list[Body]:
        from ipaddress import ip_address, ip_network  # most commands never lower a team

        blocks: list[Body] = []
        for cidr in program.cluster_spec(cluster).egress_allowed:
            network = ip_network(cidr)
            inside = [str(ip_network(address)) for address in METADATA_SERVICES if ip_address(address) in network]
            # An explicitly allowed metadata service is intended.
            blocks.append(k8s.drop_none(cidr=cidr, **{"except": inside if inside and inside != [cidr] else None}))
        return blocks

    return program.memo(("egress", cluster), make)
