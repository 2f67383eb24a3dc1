"""Rights of pods: what they run and read, and what they reach of their machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from avactl.change.diff import phrases
from avactl.change.diff.rights.model import (
    HARMLESS,
    Phrase,
    Right,
    Scope,
    Table,
    as_mapping,
    harmless_values,
    in_list,
    in_mapping,
    list_entries,
    walk,
)
from avactl.contracts import names
from avactl.kinds.team.names import RUN_ACCOUNT

_NAME_AND_VALUE = frozenset(("name", "value"))


def pod_rights(scope: Scope, value: Any) -> Iterator[Right]:
    """Yield the rights of a pod."""
    if not isinstance(value, dict):
        yield from scope.sets(value)
        return
    account, token = value.get("serviceAccountName"), value.get("automountServiceAccountToken")
    if account and not (scope.compiled and account == RUN_ACCOUNT):
        yield scope.at("serviceAccountName").right("service account", f"{account}{', with its token' if token else ''}")
    elif token:
        yield scope.at("automountServiceAccountToken").right("token", "of its service account")
    for key, inner in value.items():
        if key not in ("serviceAccountName", "automountServiceAccountToken"):
            yield from walk(scope.at(key), inner, POD.get(key))


# -- containers ------------------------------------------------------------------------------------------------------


def _container_rights(scope: Scope, container: dict[str, Any]) -> Iterator[Right]:
    name = scope.path[-1]
    yield from _command_rights(scope, container, name)
    for key, value in container.items():
        inside = scope.at(key)
        if str(key).endswith("Probe"):
            yield from _action_rights(inside, value, f"{key} of {name}", _PROBE)
        elif key in _OF_CONTAINER:
            yield from _OF_CONTAINER[key](inside, value, name)
        elif key not in ("image", "command", "args"):
            yield from walk(inside, value, _CONTAINER.get(key))


def _command_rights(scope: Scope, container: dict[str, Any], name: str) -> Iterator[Right]:
    image = str(container.get("image", ""))
    words = [word for key in ("command", "args") for word in list_entries(container.get(key))]
    first = scope.path[-2] == "containers" and scope.number == 0
    if scope.compiled and (image in scope.platform or (words and not first and not _is_chosen(scope, words))):
        return
    yield scope.right("runs", {"command": words, "image": image}, name)


def _is_chosen(scope: Scope, words: list[Any]) -> bool:
    """Return whether a command of a compiled object is in its spec; the others are avactl's."""
    return any(isinstance(word, str) and word in scope.given for word in words)


def _env_rights(scope: Scope, value: Any, container: str) -> Iterator[Right]:
    def variable(where: Scope, each: dict[str, Any]) -> Iterator[Right]:
        setting = each.get("value", "") if each.keys() <= _NAME_AND_VALUE else each.get("valueFrom")
        right = where.right("env", setting, where.path[-1], where.path[-1])
        yield replace(right, of=f"{container} of {where.manifest.id}")

    if not scope.compiled or scope.manifest.patched:  # else the spec says them
        yield from in_list(variable)(scope, value)


def _env_from(scope: Scope, value: Any, container: str) -> Iterator[Right]:
    def source(where: Scope, each: dict[str, Any]) -> Iterator[Right]:
        for key, inner in each.items():
            if key == "configMapRef":
                yield where.right("reads", f"ConfigMap {as_mapping(inner).get('name')} as variables of {container}")
            elif key != "secretRef":  # among the Secrets
                yield from where.at(key).sets(inner)

    yield from in_list(source)(scope, value)


def _hook_rights(scope: Scope, value: Any, container: str) -> Iterator[Right]:
    def hooks(where: Scope, given: dict[str, Any]) -> Iterator[Right]:
        for hook, action in given.items():
            yield from _action_rights(where.at(hook), action, f"{hook} of {container}")

    yield from in_mapping(hooks)(scope, value)


def _action_rights(scope: Scope, value: Any, title: str, table: Table | None = None) -> Iterator[Right]:
    """Yield the rights of a hook or probe: commands, and requests."""

    def action(where: Scope, given: dict[str, Any]) -> Iterator[Right]:
        for key, inner in given.items():
            if key == "exec" and isinstance(inner, dict):
                words = list_entries(inner.get("command"))
                if not where.compiled or _is_chosen(where, words):
                    yield where.right("runs", {"command": words}, title)
            else:
                yield from walk(where.at(key), inner, (table or {}).get(key))

    yield from in_mapping(action)(scope, value)


def _security_rights(scope: Scope, value: Any, name: str) -> Iterator[Right]:
    def settings(where: Scope, given: dict[str, Any]) -> Iterator[Right]:
        for key, inner in given.items():
            inside = where.at(key)
            if key == "privileged" and inner is True:
                yield inside.right("privileged", name)
            elif key == "allowPrivilegeEscalation" and inner is True:
                yield inside.right("may", f"escalate privileges in {name}")
            elif key == "capabilities" and isinstance(inner, dict):
                for capability in list_entries(inner.get("add")):
                    yield inside.right("may", f"{phrases.show_value(capability)} in {name}")
                yield from walk(inside, {k: v for k, v in inner.items() if k != "add"}, {"drop": HARMLESS})
            elif key in _ID_FIELDS:
                if not isinstance(inner, int) or inner < 1:
                    yield inside.right("may", f"run as {_ID_FIELDS[key]} {phrases.show_value(inner)} in {name}")
            else:
                yield from walk(inside, inner, _SECURITY.get(key))

    yield from in_mapping(settings)(scope, value)


def _port_rights(scope: Scope, value: Any, name: str) -> Iterator[Right]:
    def port(where: Scope, given: dict[str, Any]) -> Iterator[Right]:
        if given.get("hostPort"):
            yield where.right("host port", f"{given['hostPort']} for {name}")
        yield from walk(where, {key: inner for key, inner in given.items() if key != "hostPort"}, _PORT)

    yield from in_list(port)(scope, value)


_OF_CONTAINER = {
    "env": _env_rights,
    "envFrom": _env_from,
    "lifecycle": _hook_rights,
    "securityContext": _security_rights,
    "ports": _port_rights,
}


# -- volumes ---------------------------------------------------------------------------------------------------------


def _volume_rights(scope: Scope, volume: dict[str, Any]) -> Iterator[Right]:
    for key, source in volume.items():
        yield from walk(scope.at(key), source, _VOLUME.get(key))


def _named_reference(what: str, text: str, key: str) -> Phrase:
    """Return a phrase for a reference to another object, or to a path."""

    def phrase(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
        yield scope.right(what, text.format(value.get(key)))

    return in_mapping(phrase)


def _csi_rights(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    more = {key: inner for key, inner in value.items() if key not in ("driver", "nodePublishSecretRef") and inner}
    yield scope.right("volume", {"of": value.get("driver"), **more})


def _nfs_rights(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    yield scope.right("volume", f"{value.get('server')}:{value.get('path')}")


def _projected_rights(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    def source(where: Scope, given: dict[str, Any]) -> Iterator[Right]:
        for key, inner in given.items():
            yield from walk(where.at(key), inner, _PROJECTED.get(key))

    yield from in_list(source)(scope.at("sources"), value.get("sources"))


def _projected_token(scope: Scope, value: dict[str, Any]) -> Iterator[Right]:
    yield scope.right("token", f"of its service account for {value.get('audience') or 'the API server'}")


_CONFIG_MAP = _named_reference("reads", "ConfigMap {}", "name")
_PROJECTED: Table = {
    "serviceAccountToken": in_mapping(_projected_token),
    "configMap": _CONFIG_MAP,
    "secret": HARMLESS,
    "downwardAPI": HARMLESS,
}
"""Secrets are found by their names, wherever they are."""
_VOLUME: Table = {
    "name": HARMLESS,
    "emptyDir": HARMLESS,
    "downwardAPI": HARMLESS,
    "secret": HARMLESS,
    "configMap": _CONFIG_MAP,
    "persistentVolumeClaim": _named_reference("claim", "{}", "claimName"),
    "hostPath": _named_reference("host path", "{}", "path"),
    "nfs": in_mapping(_nfs_rights),
    "csi": in_mapping(_csi_rights),
    "projected": in_mapping(_projected_rights),
}


# -- tables ----------------------------------------------------------------------------------------------------------


def _of_machine(what: str) -> Phrase:
    def phrase(scope: Scope, value: Any) -> Iterator[Right]:
        if value:
            yield scope.right(what, scope.manifest.name)

    return phrase


_PROBE: Table = {
    "httpGet": {"path": HARMLESS, "port": HARMLESS, "scheme": HARMLESS},
    "tcpSocket": {"port": HARMLESS},
    "grpc": HARMLESS,
    "initialDelaySeconds": HARMLESS,
    "periodSeconds": HARMLESS,
    "timeoutSeconds": HARMLESS,
    "successThreshold": HARMLESS,
    "failureThreshold": HARMLESS,
    "terminationGracePeriodSeconds": HARMLESS,
}
_PORT: Table = {"name": HARMLESS, "containerPort": HARMLESS, "protocol": HARMLESS}
_ID_FIELDS = {"runAsUser": "user", "runAsGroup": "group", "fsGroup": "group"}
_SECURITY: Table = {
    "privileged": harmless_values(False),
    "allowPrivilegeEscalation": harmless_values(False),
    "runAsNonRoot": harmless_values(True),
    "readOnlyRootFilesystem": HARMLESS,
    "fsGroupChangePolicy": HARMLESS,
    "supplementalGroupsPolicy": HARMLESS,
    "seccompProfile": {"type": harmless_values("RuntimeDefault")},
    "appArmorProfile": {"type": harmless_values("RuntimeDefault")},
}
_AMOUNTS: Table = {"requests": HARMLESS, "limits": HARMLESS}
_CONTAINER: Table = {
    "name": HARMLESS,
    "imagePullPolicy": HARMLESS,
    "resources": _AMOUNTS,
    "resizePolicy": HARMLESS,
    "tty": HARMLESS,
    "stdin": HARMLESS,
    "stdinOnce": HARMLESS,
    "terminationMessagePath": HARMLESS,
    "terminationMessagePolicy": HARMLESS,
    "workingDir": HARMLESS,
    "restartPolicy": HARMLESS,
    "volumeMounts": {"name": HARMLESS, "mountPath": HARMLESS, "readOnly": HARMLESS, "subPath": HARMLESS},
}
"""Fields of a container that give no right. The source of what is mounted is a right of its own."""
POD: Table = {
    "containers": in_list(_container_rights),
    "initContainers": in_list(_container_rights),
    "volumes": in_list(_volume_rights),
    "securityContext": lambda scope, value: _security_rights(scope, value, "all containers"),
    "hostNetwork": _of_machine("host network"),
    "hostPID": _of_machine("host PIDs"),
    "hostIPC": _of_machine("host IPC"),
    "imagePullSecrets": HARMLESS,
    "restartPolicy": HARMLESS,
    "terminationGracePeriodSeconds": HARMLESS,
    "activeDeadlineSeconds": HARMLESS,
    "affinity": HARMLESS,
    "nodeSelector": HARMLESS,
    "hostname": HARMLESS,
    "subdomain": HARMLESS,
    "topologySpreadConstraints": HARMLESS,
    "enableServiceLinks": HARMLESS,
    "dnsPolicy": HARMLESS,
    "setHostnameAsFQDN": HARMLESS,
    "schedulerName": harmless_values(names.SCHEDULER_NAME),
    "resources": _AMOUNTS,
}
"""Fields of a pod: the rights that they give, and those that give none."""
