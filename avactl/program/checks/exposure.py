"""Checks of exposure: hosts that the cluster gives to the team, one owner of each host, and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from avactl.base.promql import syntax_problem
from avactl.diagnostics import Diagnostic, Note, Reference
from avactl.diagnostics.suggest import WordIndex, did_you_mean, one_of
from avactl.program import registry
from avactl.program.lowering.exposure import Exposing, fill_in, grpc_of, grpc_services, route_names
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.platform.cluster import ClusterSpec
from avactl.spec.platform.team import Team
from avactl.spec.schema.exposure import NAMESPACE, POOL, ROUTES, Expose, ExposePorts, Exposure, Grpc, Tls

_EXPOSE_PATH = ("spec", "expose")


def cluster_problems(item: Item[ClusterSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of what a cluster offers."""
    offered, path = item.spec.exposure, ("spec", "exposure")
    if offered is None:
        return
    if (offered.gateway is None) == (offered.ingress is None):
        both = offered.gateway is not None
        yield Diagnostic(
            "conflicting-keys" if both else "missing-key",
            "`gateway` and `ingress` exclude each other" if both else "`spec.exposure` needs `gateway` or `ingress`",
            item.span(*path, "ingress", key=True) if both else item.span(*path, key=True),
            hint="remove one of them"
            if both
            else "add `gateway: {name: …, namespace: …}`, or `ingress: {className: …}`",
        )
    yield from check_duplicates(item, (*path, "domains"), (domain.name for domain in offered.domains), "domain")
    yield from _check_queries(item, offered, path)
    for index, domain in enumerate(offered.domains):
        for position, name in enumerate(domain.teams or ()):
            team = program.find_team(name)
            if (team is not None and item.name in team.clusters) or program.is_broken_team(name):
                continue
            known = program.memo(
                ("names of teams", item.name), lambda: WordIndex(team.name for team in program.teams(item.name))
            )
            message = f"unknown Team `{name}`" if team is None else f"team {name} does not use cluster {item.name}"
            hint = did_you_mean(name, known, "teams of the cluster") if known.words else "declare it: `kind: Team`"
            span = item.span(*path, "domains", index, "teams", position)
            about = Reference(Team.KIND, name, known.closest(name) or "") if team is None else None
            yield Diagnostic("missing-reference", message, span, hint=hint, reference=about)


def _check_queries(item: Item, offered: Exposure, path: tuple[str, ...]) -> Iterator[Diagnostic]:
    """Yield the problems of the queries for requests to one service."""
    gateway = offered.gateway
    queued = gateway.queued if gateway is not None else None
    for query, of_one, where in (
        (offered.requests, ROUTES, (*path, "requests")),
        (queued, POOL, (*path, "gateway", "queued")),
    ):
        if query is None:
            continue
        missing = next((each for each in (NAMESPACE, of_one) if each not in query), None)
        if missing is not None:
            yield Diagnostic(
                "invalid-query",
                f"`{where[-1]}`: without `{missing}`, the query counts requests to all services",
                item.span(*where),
                hint=f"select by it: `{_SELECTOR_PLACEHOLDERS[missing]}`",
            )
            continue
        problem = syntax_problem(fill_in(query, "team", "service"), route_names("service"))
        if problem is not None:
            yield Diagnostic("invalid-query", f"`{where[-1]}`: {problem.message}", item.span(*where), hint=problem.hint)
    if gateway is not None and queued is not None and not gateway.inference_pools:
        yield Diagnostic(
            "conflicting-keys",
            "`queued` counts requests to InferencePools, which this Gateway does not route to",
            item.span(*path, "gateway", "queued", key=True),
            hint="add `inferencePools: true`, or remove `queued`",
        )


_SELECTOR_PLACEHOLDERS = {
    NAMESPACE: f'namespace="{NAMESPACE}"',
    ROUTES: f'route=~"{ROUTES}"',
    POOL: f'inference_pool="{POOL}"',
}


class ExposureClaim(NamedTuple):
    """A host, and a path or gRPC service, that a spec claims."""

    host: str
    path: str
    """Path prefix; of gRPC, the service, or `/` for all of them."""
    keys: tuple[str | int, ...]
    """Location of the path below `expose`; of the host, if all paths are claimed by default."""
    grpc: bool = False


def _claims_of(item: Item, program: Program) -> tuple[ExposureClaim, ...]:
    wanted: Expose | ExposePorts | None = getattr(item.spec, "expose", None)
    found: list[ExposureClaim] = []
    if wanted is not None and wanted.host is not None:
        declared = "paths" in wanted.model_fields_set
        for index, path in enumerate(wanted.paths):
            found.append(
                ExposureClaim(wanted.host, path.rstrip("/") or "/", ("paths", index) if declared else ("host",))
            )
    grpc = grpc_of(wanted)
    if grpc is not None:
        for index, name in enumerate(grpc_services(item) or ("",)):
            keys = ("grpc", "services", index) if grpc.services is not None else ("grpc", "host")
            found.append(ExposureClaim(grpc.host, f"/{name}", keys, grpc=True))
    return tuple(found)


def _claimed_hosts(item: Item, program: Program) -> dict[str, tuple[str | int, ...]]:
    """Return the hosts that a spec claims, and where each is declared."""
    return {
        claim.host: (*_EXPOSE_PATH, *(("grpc", "host") if claim.grpc else ("host",)))
        for claim in program.derive(item, _claims_of)
    }


def _by_host(program: Program) -> dict[str, list[Item]]:
    """Map each host to the specs that claim it, in reading order."""

    def make() -> dict[str, list[Item]]:
        found: dict[str, list[Item]] = {}
        items = [item for kind in registry.workload_kinds() for item in program.of(kind)]
        for item in sorted(items, key=lambda item: item.origin):
            for host in {claim.host for claim in program.derive(item, _claims_of)}:
                found.setdefault(host, []).append(item)
        return found

    return program.memo("exposed hosts", make)


def expose_problems(item: Item[Exposing], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of a workload's `expose`."""
    wanted = item.spec.expose
    if wanted is None:
        return
    offered = program.cluster_spec(item.cluster).exposure
    if offered is None:
        cluster = program.cluster(item.cluster)
        yield Diagnostic(
            "missing-gateway",
            f"{item} is exposed, but cluster {item.cluster} declares no gateway",
            item.span(*_EXPOSE_PATH, key=True),
            hint=f"add `exposure: {{gateway: …, proxies: …, domains: …}}` to Cluster {item.cluster}",
            notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
        )
        return
    grpc = grpc_of(wanted)
    if grpc is not None:
        yield from _check_grpc(item, program, wanted.host, grpc, offered)
    for host, path in _claimed_hosts(item, program).items():
        yield from _check_domain(item, program, host, path, offered)
        yield from _check_host_conflicts(item, program, host, path)
    if wanted.timeout is not None:
        yield from _check_timeout(item, program, offered)
    if wanted.tls is not None:
        yield from _check_tls(item, program, wanted.tls, offered)
    yield from check_duplicates(
        item, (*_EXPOSE_PATH, "paths"), (path.rstrip("/") or "/" for path in wanted.paths), "path", key=None
    )


def _check_grpc(item: Item, program: Program, http: str | None, grpc: Grpc, offered: Exposure) -> Iterator[Diagnostic]:
    """Yield the problems of `expose.grpc`; `http` is the host of the HTTP port."""
    path = (*_EXPOSE_PATH, "grpc")
    yield from check_duplicates(item, (*path, "services"), grpc.services or (), "service", key=None)
    if offered.gateway is None and offered.ingress is not None:
        cluster = program.cluster(item.cluster)
        yield Diagnostic(
            "missing-gateway",
            f"gRPC is exposed by a Gateway, and cluster {cluster.name} has an Ingress controller",
            item.span(*path, key=True),
            hint="remove `grpc`, or give the cluster a `gateway` instead of `ingress`",
            notes=(Note(cluster.span("spec", "exposure", "ingress", key=True), "the controller"),),
        )
    if grpc.host == http:
        yield Diagnostic(
            "host-conflict",
            f"host `{grpc.host}` is already that of the HTTP port, and a Gateway serves a host by HTTP or by gRPC",
            item.span(*path, "host"),
            hint="choose another host for gRPC",
            notes=(Note(item.span(*_EXPOSE_PATH, "host"), "the host of the HTTP port"),),
        )


def _check_timeout(item: Item, program: Program, offered: Exposure) -> Iterator[Diagnostic]:
    """Yield a timeout that no route can have."""
    cluster, gateway = program.cluster(item.cluster), offered.gateway
    if gateway is not None and not gateway.timeouts:
        yield Diagnostic(
            "missing-gateway",
            f"the Gateway of cluster {cluster.name} does not support timeouts of HTTPRoutes",
            item.span(*_EXPOSE_PATH, "timeout"),
            hint="remove `timeout`, and set the Gateway's own by the policies that it has",
            notes=(Note(cluster.span("spec", "exposure", "gateway", "timeouts"), "declared here"),),
        )
    elif gateway is None and offered.ingress is not None:
        yield Diagnostic(
            "missing-gateway",
            f"`timeout` is one of a Gateway's HTTPRoute, and cluster {cluster.name} has an Ingress controller",
            item.span(*_EXPOSE_PATH, "timeout"),
            hint="remove `timeout`, and set the controller's own by `annotations` of `ingress` in the Cluster",
            notes=(Note(cluster.span("spec", "exposure", "ingress", key=True), "the controller"),),
        )


def _check_domain(
    item: Item, program: Program, host: str, path: tuple[str | int, ...], offered: Exposure
) -> Iterator[Diagnostic]:
    holding = [domain for domain in offered.domains if f".{host}".endswith(f".{domain.name}")]
    longest = max(holding, key=lambda domain: len(domain.name), default=None)
    if longest is not None and (longest.teams is None or item.team in longest.teams):
        return
    given = [domain for domain in offered.domains if domain.teams is None or item.team in domain.teams]
    cluster = program.cluster(item.cluster)
    where: tuple[str | int, ...] = ("spec", "exposure", "domains")
    if longest is None:
        message = f"host `{host}` is in none of the domains of cluster {item.cluster}"
    else:
        message = f"domain `{longest.name}` of host `{host}` is not for team {item.team}"
        where = (*where, offered.domains.index(longest), "teams")
    first = host.partition(".")[0]
    hint = (
        f"write `{first}.{given[0].name}`" if given else f"add a domain for team {item.team} to Cluster {cluster.name}"
    )
    yield Diagnostic(
        "host-not-allowed",
        message,
        item.span(*path),
        hint=hint,
        notes=(
            Note(
                cluster.span(*where, key=True),
                f"domains of team {item.team}: {one_of([domain.name for domain in given]) if given else 'none'}",
            ),
        ),
    )


def _check_host_conflicts(item: Item, program: Program, host: str, path: tuple[str | int, ...]) -> Iterator[Diagnostic]:
    """Yield a host of another team, or a path or service of another spec, that was claimed before in reading order."""
    own = [claim for claim in program.derive(item, _claims_of) if claim.host == host]
    for other in _by_host(program).get(host, ()):
        if other is item:
            return
        notes = (Note(other.span(*_claimed_hosts(other, program)[host]), "claimed here"),)
        if other.team != item.team:
            yield Diagnostic(
                "host-conflict",
                f"host `{host}` is already that of {other}, of another team",
                item.span(*path),
                hint="choose another host: browsers send the cookies of a host to all of its paths",
                notes=notes,
            )
            return
        if other.cluster != item.cluster:
            continue  # one name for the same service in two clusters, by DNS
        theirs = [claim for claim in program.derive(other, _claims_of) if claim.host == host]
        if own[0].grpc != theirs[0].grpc:
            yield Diagnostic(
                "host-conflict",
                f"host `{host}` is already that of {other} by {'gRPC' if theirs[0].grpc else 'HTTP'}, and a Gateway "
                "serves a host by HTTP or by gRPC",
                item.span(*path),
                hint="choose another host",
                notes=notes,
            )
            return
        for claim in own:
            if any(each.path == claim.path for each in theirs):
                shared = "`services`" if claim.grpc else "`paths`"
                yield Diagnostic(
                    "host-conflict",
                    f"{other} is already exposed as `{host}{claim.path}`",
                    item.span(*_EXPOSE_PATH, *claim.keys),
                    hint=f"choose another host, or give each spec {shared} of its own",
                    notes=notes,
                )
                return


def _check_tls(item: Item, program: Program, tls: Tls, offered: Exposure) -> Iterator[Diagnostic]:
    cluster = program.cluster(item.cluster)
    if offered.gateway is not None:
        gateway = offered.gateway
        yield Diagnostic(
            "conflicting-keys",
            f"the certificate is that of listener `{gateway.listener}` of Gateway {gateway.namespace}/{gateway.name}",
            item.span(*_EXPOSE_PATH, "tls", key=True),
            hint="remove `tls`",
            notes=(Note(cluster.span("spec", "exposure", "gateway", key=True), "the gateway"),),
        )
    elif offered.ingress is not None and tls.issuer is not None and tls.issuer not in offered.ingress.issuers:
        yield Diagnostic(
            "missing-reference",
            f"`{tls.issuer}` is not one of the issuers of cluster {cluster.name}",
            item.span(*_EXPOSE_PATH, "tls", "issuer"),
            hint=did_you_mean(tls.issuer, offered.ingress.issuers, "issuers")
            if offered.ingress.issuers
            else "write `{secret: NAME}`, or remove `tls`: the controller has a certificate of its own",
            notes=(Note(cluster.span("spec", "exposure", "ingress", key=True), "the controller"),),
        )
