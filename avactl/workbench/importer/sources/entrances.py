"""Services of a server, and what refers to them: kept as they are, mended, or listed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from avactl.contracts.foreign_keys import key_owner
from avactl.kinds.serving.runtime_facts import facts_of
from avactl.program.program import name_label
from avactl.spec.documents.document import Path
from avactl.workbench.importer.cleaning import clean_object
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader, Mend
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.metadata import add_patch, keep_metadata
from avactl.workbench.importer.sources.probes import named_ports

_ROUTES = ("Ingress", "HTTPRoute", "GRPCRoute", "VirtualService", "IngressRoute", "TLSRoute", "TCPRoute")
_MONITORS = ("ServiceMonitor",)
_POLICY = "the NetworkPolicy of the ServingDeployment admits only pods of its team, and the gateway of `expose`"
_ADMIT = "write `expose`, or add the namespace of its controller to `namespaces` of the Cluster"


def carry_services(
    context: Context, reader: ImportReader, spec: ImportedSpec, labels: Body, container: Body, place: Path
) -> str:
    """Carry the Services of a server over, and return the reason why that cannot be done, or "".

    That of the spec's own name becomes the spec's, with the ports and settings of the source. Others stay manifests;
    their selector is mended if it names labels that avactl sets itself. `labels`: of the pods; `place`: path of the
    container.
    """
    given = reader.given
    kept = (spec.spec.get("pod") or {}).get("labels") or {}
    services = context.find("Service", given.namespace, lambda each: is_selected(each, labels))
    for service in services:
        own = service.name == spec.name
        if own and service.get("spec", "clusterIP") != "None" and service.get("spec", "type") != "ExternalName":
            if _selects_others(context, service, given):
                return f"its Service {service.name} has the pods of other objects, too"
            _absorb_service(context, reader, spec, service, container)
        elif own:
            return f"its Service {service.name} is headless, and that of a ServingDeployment has an address"
        else:
            selector = service.get("spec", "selector")
            if not selector.items() <= kept.items():
                if _selects_others(context, service, given):
                    return f"its Service {service.name} has the pods of other objects, too, by labels that avactl sets"
                mended = {
                    "app.kubernetes.io/name": name_label("ServingDeployment"),
                    "app.kubernetes.io/instance": spec.name,
                    "app.kubernetes.io/component": "server",
                }
                why = f"avactl sets labels of the pods; the Service selects those of {spec}"
                spec.mends.append(Mend(service, ("spec", "selector"), mended, why))
            _fix_target_ports(spec, service, container)
            if service.get("spec", "type") in ("LoadBalancer", "NodePort"):
                spec.mends.append(Mend(service, ("spec", "type"), None, _POLICY, _ADMIT))
    names = {service.name for service in services}
    _list_references(context, spec, given, names, spec.name if spec.name in names else "")
    _list_pod_monitors(context, spec, given, labels, container)
    _list_lost_labels(context, spec, given, labels)
    mend_targets(context, spec, given)
    _list_closed_ports(reader, spec, services, container, place)
    return ""


def is_selected(each: GivenValue, labels: Body) -> bool:
    """Return True if a Service or budget selects pods with these labels."""
    found = each.get("spec", "selector")
    if isinstance(found, dict) and {"matchLabels", "matchExpressions"} & set(found):
        if found.get("matchExpressions"):
            return False
        found = found.get("matchLabels")
    return bool(found) and isinstance(found, dict) and found.items() <= labels.items()


def _selects_others(context: Context, each: GivenValue, given: GivenValue) -> bool:
    return any(
        other.key != given.key and is_selected(each, labels)
        for other in context.objects_in(given.namespace)
        if isinstance(labels := other.get("spec", "template", "metadata", "labels"), dict)
    )


def has_own_budget(context: Context, each: GivenValue, given: GivenValue) -> bool:
    """Return True if a budget is about the pods of one object only."""
    return not _selects_others(context, each, given)


def part_of(context: Context, reader: ImportReader, spec: ImportedSpec, given: GivenValue) -> ImportReader:
    """Make an object part of a spec, and return its reader."""
    context.used.add(given)
    spec.given.append(given)
    own = ImportReader(given)
    own.losses = reader.losses
    for key in ("apiVersion", "kind", "status"):
        own.take(key)
    for key in given.value["metadata"]:
        if key not in ("labels", "annotations"):
            own.take("metadata", key)
    return own


def _absorb_service(
    context: Context, reader: ImportReader, spec: ImportedSpec, service: GivenValue, container: Body
) -> None:
    own = part_of(context, reader, spec, service)
    keep_metadata(own, spec, "Service", spec.name)
    own.take("spec", "selector")
    cleaned: Body = clean_object(service.value).get("spec") or {}
    for key in service.get("spec") or ():
        if key in ("ports", "selector"):
            continue
        value = own.take("spec", key)
        if key in cleaned and key not in ("clusterIP", "clusterIPs") and value not in (None, [], {}):
            add_patch(spec, "Service", {"spec": {key: value}}, service, ("spec", key), spec.name)
            if key == "type" and value != "ClusterIP":
                own.note(("spec", key), _POLICY, _ADMIT)
    _patch_ports(own, spec, service, container)


def _patch_ports(own: ImportReader, spec: ImportedSpec, service: GivenValue, container: Body) -> None:
    """Give the Service of the spec the ports of the source, beside those of the server."""
    compiled = server_ports(spec)
    by_number = {number: name for name, number in compiled.items()}
    ports = [each for each in service.get("spec", "ports") or () if isinstance(each, dict)]
    named = named_ports(container)
    taken = {str(each.get("name")) for each in ports if each.get("name")}
    entries: list[Body] = []
    seen = set()
    for index, port in enumerate(ports):
        own.take("spec", "ports", index)
        number: Any = port.get("port")
        if number in seen:
            own.note(("spec", "ports", index), "a Service has a port once, whatever its protocol", "")
            continue
        seen.add(number)
        target = port.get("targetPort") or number
        made = {key: value for key, value in port.items() if (key, value) != ("protocol", "TCP")}
        made["targetPort"] = named.get(str(target), target)
        made.setdefault("name", by_number.get(number) or f"port-{number}")
        if made != {"name": by_number.get(number), "port": number, "targetPort": number}:
            entries.append(made)
    for name, number in compiled.items():
        if name in taken and number not in seen:
            entries.append({"port": number, "name": f"server-{name}"})
    if entries:
        add_patch(spec, "Service", {"spec": {"ports": entries}}, service, ("spec", "ports"), spec.name)


def server_ports(spec: ImportedSpec) -> dict[str, int]:
    """Return the ports that the Service of a spec has, by name."""
    run = spec.spec["runtime"]
    found = {name: number for name, number in facts_of(run["name"]).ports.items() if name in ("http", "grpc")}
    for key, name in (("port", "http"), ("grpcPort", "grpc")):
        if key in run:
            found[name] = run[key]
    return found


def _fix_target_ports(spec: ImportedSpec, service: GivenValue, container: Body) -> None:
    """Mend ports of a kept Service that name a port of the container, which has another name now."""
    named, compiled = named_ports(container), server_ports(spec)
    kept = {each.get("name") for each in further_ports(spec, container)}
    for index, port in enumerate(service.get("spec", "ports") or ()):
        target = port.get("targetPort") if isinstance(port, dict) else None
        if isinstance(target, str) and target in named and target not in kept and compiled.get(target) != named[target]:
            why = f"the container of {spec} has no port of the name `{target}`: it is {named[target]}"
            spec.mends.append(Mend(service, ("spec", "ports", index, "targetPort"), named[target], why))


def _list_references(context: Context, spec: ImportedSpec, given: GivenValue, services: set[str], own: str) -> None:
    """List routes from outside, and monitors whose labels the Service does not have any more."""
    for other in context.objects_in(given.namespace):
        if other in context.used:
            continue
        if other.kind in _ROUTES:
            place = next((path for path, name in _backends(other.get("spec"), ("spec",)) if name in services), None)
            if place is not None:
                spec.mends.append(Mend(other, place, None, _POLICY, _ADMIT))
        elif other.kind in _MONITORS and own:
            service = next(each for each in spec.given if each.kind == "Service")
            wanted = other.get("spec", "selector", "matchLabels")
            labels = service.get("metadata", "labels") or {}
            if isinstance(wanted, dict) and wanted.items() <= labels.items() and any(map(key_owner, wanted)):
                why = f"avactl sets these labels of Service {own}, which it selects"
                remedy = "select it by labels of your own"
                spec.mends.append(Mend(other, ("spec", "selector", "matchLabels"), None, why, remedy))


def _list_pod_monitors(context: Context, spec: ImportedSpec, given: GivenValue, labels: Body, container: Body) -> None:
    """List monitors of pods whose labels or ports have other names now."""
    compiled, named = server_ports(spec), named_ports(container)
    kept = {*compiled, *(each.get("name") for each in further_ports(spec, container))}
    for other in context.objects_in(given.namespace):
        if other.kind != "PodMonitor" or not is_selected(other, labels):
            continue
        ports = [each.get("port") for each in other.get("spec", "podMetricsEndpoints") or () if isinstance(each, dict)]
        if any(map(key_owner, other.get("spec", "selector", "matchLabels"))) or any(
            port in named and port not in kept for port in ports
        ):
            why = f"the pods of {spec} have avactl's labels, and the ports {', '.join(compiled)}"
            remedy = "a known `runtime` with `monitoring` in the Cluster has a monitor of its own"
            spec.mends.append(Mend(other, ("spec",), None, why, remedy))


def mend_targets(context: Context, spec: ImportedSpec, given: GivenValue) -> None:
    """Let autoscalers that stay manifests scale the Deployment of the spec, if it has another name or kind."""
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": spec.name}
    if (given.kind, given.name) == ("Deployment", spec.name):
        return
    for other in context.objects_in(given.namespace):
        for key in ("scaleTargetRef", "targetRef"):
            referred = other.get("spec", key)
            if not isinstance(referred, dict):
                continue
            group = str(referred.get("apiVersion") or target["apiVersion"]).rpartition("/")[0]
            if (group, referred.get("kind") or "Deployment", referred.get("name")) == (
                given.group,
                given.kind,
                given.name,
            ):
                why = f"{spec} compiles to Deployment {spec.name}, in place of {given.kind} {given.name}"
                spec.mends.append(Mend(other, ("spec", key), target, why))


def _list_lost_labels(context: Context, spec: ImportedSpec, given: GivenValue, labels: Body) -> None:
    """List objects that select the pods by labels that avactl sets itself, or name them in a program."""
    lost = {key: value for key, value in labels.items() if key_owner(key)}
    if not lost:
        return
    texts = [f"{key}={value}" for key, value in lost.items()]
    told = set()
    for other, path, value in _find_label_users(context, given.namespace):
        if other in context.used or other.key == given.key or other in told:
            continue
        selected = isinstance(value, dict) and value.items() <= labels.items() and not lost.keys().isdisjoint(value)
        if selected or (isinstance(value, str) and any(text in value for text in texts)):
            told.add(other)
            why = f"the pods of {spec} have avactl's values of {', '.join(lost)}"
            spec.mends.append(Mend(other, path, None, why, "select them by labels of your own"))


def _find_label_users(context: Context, namespace: str) -> list[tuple[GivenValue, Path, Any]]:
    """Return selectors of pods in the objects of a namespace, and texts that may have one; each is searched once."""
    if not context.label_users:
        for other in context.objects:
            found = context.label_users[other.namespace]
            if other.kind in ("Service", "PodMonitor", *_MONITORS):
                continue
            own = ("spec", "selector") if other.get("spec", "template") is not None else ()
            for path, value in _leaves(other.get("spec"), ("spec",)):
                selects = path[-1] in ("matchLabels", "podSelector", "selector") and (not own or path[:2] != own)
                if (selects and isinstance(value, dict)) or (isinstance(value, str) and "=" in value):
                    found.append((other, path, value))
    return context.label_users[namespace]


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield all values below a path, with their paths."""
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _leaves(each, (*path, key))


def _backends(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the names of Services in a route, with their paths."""
    for place, each in _leaves(value, path):
        if place[-1] in ("name", "host", "serviceName") and isinstance(each, str):
            yield place, each.partition(".")[0]


def _list_closed_ports(
    reader: ImportReader, spec: ImportedSpec, services: list[GivenValue], container: Body, place: Path
) -> None:
    """List ports of the container, and those to which Services lead, that the spec's NetworkPolicy does not admit."""
    known = {*server_ports(spec).values(), *facts_of(spec.spec["runtime"]["name"]).ports.values()}
    closed = [
        f"{each.get('name') or 'port'} {each['containerPort']}"
        for each in container.get("ports") or ()
        if isinstance(each, dict) and each.get("containerPort") not in known
    ]
    declared = [each.get("containerPort") for each in container.get("ports") or () if isinstance(each, dict)]
    targets = [
        port.get("targetPort") or port.get("port")
        for service in services
        for port in service.get("spec", "ports") or ()
        if isinstance(port, dict)
    ]
    undeclared = {each for each in targets if isinstance(each, int) and each not in known and each not in declared}
    closed += [f"port {each}" for each in sorted(undeclared)]
    names = {number: name for name, number in server_ports(spec).items()}
    for name, number in named_ports(container).items():
        if number in names and names[number] != name:
            reader.note((*place, "ports"), f"port {number} is named `{names[number]}`, and not `{name}`", "")
    if closed:
        reader.note(
            (*place, "ports"),
            f"the NetworkPolicy of the ServingDeployment admits requests to {', '.join(map(str, sorted(known)))}, "
            f"and not to {', '.join(closed)}",
            "add a NetworkPolicy by KubernetesObjects, if other pods ask them",
        )


def further_ports(spec: ImportedSpec, container: Body) -> list[Body]:
    """Return the ports of the container that are not those of the server, for a patch."""
    compiled = dict(facts_of(spec.spec["runtime"]["name"]).ports) | server_ports(spec)
    found = []
    for each in container.get("ports") or ():
        if not isinstance(each, dict) or each.get("containerPort") in compiled.values():
            continue
        found.append({key: value for key, value in each.items() if key != "name" or value not in compiled})
    return found
