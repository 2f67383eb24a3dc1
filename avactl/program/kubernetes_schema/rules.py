"""Rules that the schema does not express: objects of the right types that Kubernetes refuses, or that never run.

Source: k8s.io/kubernetes/pkg/apis/{core,apps,batch}/validation, and the merge of lists by key in server-side apply.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import PydanticCustomError

from avactl.base.quantity import parse_quantity
from avactl.diagnostics.suggest import did_you_mean, one_of
from avactl.program.kubernetes_schema import Path, Violation, duplicate_violations
from avactl.program.kubernetes_schema.templates import template_path, value_at
from avactl.spec.schema.values import label_key, label_value

_IS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*").fullmatch
_FREE_NAMES = ("rbac.authorization.k8s.io", "certificates.k8s.io", "networking.k8s.io")
"""API groups with kinds whose names may have uppercase letters or colons."""
_KINDS_WITH_SELECTOR = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet")
_CRON_MACROS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_IS_CRON = re.compile(r"[-0-9A-Za-z*?/,]{1,100}").fullmatch
_MAX_SHOWN = 60


def rule_violations(body: dict[str, Any]) -> Iterator[Violation]:
    """Yield what is wrong with an object that satisfies the schema of its kind."""
    kind = body["kind"]
    yield from duplicate_violations(body)
    yield from _metadata_violations(
        value_at(body, ("metadata",)), ("metadata",), not body["apiVersion"].startswith(_FREE_NAMES)
    )
    if kind == "CronJob":
        yield from _schedule_violations(value_at(body, ("spec",)).get("schedule"), ("spec", "schedule"))
    if kind == "PersistentVolumeClaim":
        yield from _resource_violations(value_at(body, ("spec", "resources")), ("spec", "resources"))
    path = template_path(kind)
    if path is None:
        return
    template = value_at(body, path)
    if path:
        yield from _metadata_violations(value_at(template, ("metadata",)), (*path, "metadata"), False)
    if kind in _KINDS_WITH_SELECTOR:
        yield from _selector_violations(
            value_at(body, ("spec", "selector", "matchLabels")), value_at(template, ("metadata", "labels"))
        )
    claims = value_at(body, ("spec",)).get("volumeClaimTemplates") if kind == "StatefulSet" else ()
    yield from _pod_violations(
        kind,
        value_at(template, ("spec",)),
        (*path, "spec"),
        {_name_of(value_at(each, ("metadata",))) for each in claims or ()},
    )


def _metadata_violations(metadata: dict[str, Any], path: Path, named: bool) -> Iterator[Violation]:
    name = metadata.get("name")
    if named and isinstance(name, str) and (not _IS_SUBDOMAIN(name) or len(name) > 253):
        plain = re.sub("[^a-z0-9.]+", "-", name.lower()[:253]).strip("-.")
        hint = f"write `{plain}`" if _IS_SUBDOMAIN(plain) else "use lowercase letters, digits, `-` and `.`"
        yield Violation((*path, "name"), f"`{name[:_MAX_SHOWN]}` is not a name of Kubernetes", hint)
    for group in ("labels", "annotations"):
        for key, value in (metadata.get(group) or {}).items():
            # Prefixes of annotations may have uppercase letters.
            yield from _text_violations(label_key, key if group == "labels" else key.lower(), (*path, group, key))
            if group == "labels" and isinstance(value, str):
                yield from _text_violations(label_value, value, (*path, group, key))


def _text_violations(check: Callable[[str], str], text: str, path: Path) -> Iterator[Violation]:
    try:
        check(text)
    except PydanticCustomError as error:
        yield Violation(path, error.message(), str((error.context or {}).get("hint", "")))


def _schedule_violations(schedule: Any, path: Path) -> Iterator[Violation]:
    if not isinstance(schedule, str) or schedule in _CRON_MACROS or schedule.startswith("@every "):
        return
    fields = schedule.split()
    if len(fields) != 5 or not all(map(_IS_CRON, fields)):
        hint = "write `minute hour day month weekday`, e.g. `0 3 * * *`"
        yield Violation(path, f"`{schedule[:_MAX_SHOWN]}` is not a schedule of five fields", hint)


def _selector_violations(wanted: dict[str, Any], labels: dict[str, Any]) -> Iterator[Violation]:
    for key, value in wanted.items():
        if labels.get(key) != value:
            had = f"`{key}: {str(labels[key])[:_MAX_SHOWN]}`" if key in labels else "not this label"
            message = f"the selector matches none of its own pods: their template has {had}"
            path = ("spec", "selector", "matchLabels", key)
            yield Violation(path, message, f"write the same `{key}` in `template.metadata.labels`")


def _pod_violations(kind: str, pod: dict[str, Any], path: Path, claims: set[str]) -> Iterator[Violation]:
    once = kind in ("Job", "CronJob")
    restart = pod.get("restartPolicy") or "Always"
    if once and restart == "Always":
        where = (*path, "restartPolicy") if pod.get("restartPolicy") else path
        hint = "write `restartPolicy: Never` or `OnFailure`"
        yield Violation(where, f"pods of a {kind} end: `restartPolicy: Always` is not allowed", hint)
    if not once and kind != "Pod" and restart != "Always":
        hint = "remove the key; a Job has pods that end"
        yield Violation((*path, "restartPolicy"), f"pods of a {kind} are always restarted", hint)
    volumes = pod.get("volumes") or []
    known = claims | {_name_of(each) for each in volumes}
    containers = [
        (container, (*path, key, index))
        for key in ("initContainers", "containers")
        for index, container in enumerate(pod.get(key) or ())
        if isinstance(container, dict)
    ]
    first = {_name_of(container) for container in pod.get("initContainers") or ()}
    for index, container in enumerate(pod.get("containers") or ()):
        if (name := _name_of(container)) in first:
            where = (*path, "containers", index, "name")
            yield Violation(where, f"`{name[:_MAX_SHOWN]}` is also an init container", "rename one of them")
    for container, place in containers:
        yield from _container_violations(container, place, known)


def _container_violations(container: dict[str, Any], path: Path, volumes: set[str]) -> Iterator[Violation]:
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if _name_of(mount) not in volumes:
            hint = did_you_mean(_name_of(mount), volumes, "volumes") if volumes else "add it to `volumes`"
            where = (*path, "volumeMounts", index, "name")
            yield Violation(where, f"the pod has no volume `{_name_of(mount)[:_MAX_SHOWN]}`", hint)
    yield from _resource_violations(container.get("resources") or {}, (*path, "resources"))
    ports = [_name_of(each) for each in container.get("ports") or () if _name_of(each)]
    for key in ("startupProbe", "readinessProbe", "livenessProbe"):
        for action in ("httpGet", "tcpSocket"):
            port = value_at(container, (key, action)).get("port")
            if isinstance(port, str) and not port.isdigit() and port not in ports:
                hint = (
                    f"the container has {one_of(ports)}"
                    if ports
                    else f"write a number, or add `ports: [{{name: {port[:15]}, containerPort: …}}]`"
                )
                yield Violation((*path, key, action, "port"), f"the container has no port `{port[:_MAX_SHOWN]}`", hint)


def _resource_violations(resources: dict[str, Any], path: Path) -> Iterator[Violation]:
    # The schema admits null, which stands for a key that is not there.
    requests, limits = (
        {key: amount for key, amount in (resources.get(group) or {}).items() if amount is not None}
        for group in ("requests", "limits")
    )
    for group, amounts in (("requests", requests), ("limits", limits)):
        for key, amount in amounts.items():
            if key in ("memory", "ephemeral-storage", "storage") and 0 < parse_quantity(amount) < 1000:
                message, unit = f"`{amount}` is less than a kilobyte", "Mi" if str(amount).endswith("m") else "Gi"
                number = re.sub("[^0-9.]", "", str(amount))
                yield Violation((*path, group, key), message, f"write `{number}{unit}`")
    for key, amount in requests.items():
        if key in limits and parse_quantity(amount) > parse_quantity(limits[key]):
            message = f"the request of {amount} is above the limit of {limits[key]}"
            yield Violation((*path, "requests", key), message, "lower the request, or raise the limit")
        elif "/" in key and (key not in limits or parse_quantity(amount) != parse_quantity(limits[key])):
            message = f"`{key}` needs a limit that equals its request"
            yield Violation((*path, "requests", key), message, f"write `limits: {{{key}: {amount}}}`")


def _name_of(value: Any) -> str:
    return str(value.get("name") or "") if isinstance(value, dict) else ""
