"""Forged changes: something that a reviewer must see, and a way to hide it.

Each forgery is a pair of repositories and a word that the comment must have: things of pods, of other objects, of specs
and of patches × the ways to hide them.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.diff.sides import PLATFORM

MARK = "curl-evil.example.com"
"""What is hidden, wherever it is a text."""


class Forgery(NamedTuple):
    """Two repositories, and what the comment of the change must say."""

    name: str
    base: dict[str, str]
    head: dict[str, str]
    words: tuple[str, ...]


def _pod(**fields: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "example.com/a:1", "command": ["sleep", "1"]}
    return {"containers": [container], **fields}


def daemon_set(pod: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return _object("apps/v1", "DaemonSet", spec={"selector": {"matchLabels": labels}, "template": template})


def _object(
    version: str, kind: str, name: str = "x", namespace: str | None = "kube-system", **rest: Any
) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _with_container(**fields: Any) -> dict[str, Any]:
    """A pod with the fields in its second container."""
    pod = _pod()
    pod["containers"].append({"name": "second", "image": "example.com/b:1", "command": ["sleep", "2"], **fields})
    return pod


PODS: dict[str, tuple[dict[str, Any], str]] = {
    "privileged": (_with_container(securityContext={"privileged": True}), "privileged"),
    "capability": (_with_container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "SYS_ADMIN"),
    "root": (_with_container(securityContext={"runAsUser": 0}), "run as user 0"),
    "host path": (_pod(volumes=[{"name": "h", "hostPath": {"path": "/etc/evil"}}]), "/etc/evil"),
    "host PIDs": (_pod(hostPID=True), "host PIDs"),
    "host IPC": (_pod(hostIPC=True), "host IPC"),
    "host network": (_pod(hostNetwork=True), "host network"),
    "host port": (_with_container(ports=[{"containerPort": 1, "hostPort": 4321}]), "4321"),
    "Secret": (
        _with_container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "evil-secret", "key": "k"}}}]),
        "evil-secret",
    ),
    "all of a Secret": (_with_container(envFrom=[{"secretRef": {"name": "evil-secret"}}]), "evil-secret"),
    "all of a ConfigMap": (_with_container(envFrom=[{"configMapRef": {"name": "evil-map"}}]), "evil-map"),
    "pull secret": (_pod(imagePullSecrets=[{"name": "evil-secret"}]), "evil-secret"),
    "hook": (_with_container(lifecycle={"preStop": {"exec": {"command": ["sh", "-c", MARK]}}}), MARK),
    "probe": (_with_container(livenessProbe={"exec": {"command": ["sh", "-c", MARK]}}), MARK),
    "init container": (_pod(initContainers=[{"name": "i", "image": "e.com/i", "command": [MARK]}]), MARK),
    "command": (_with_container(args=["-c", MARK]), MARK),
    "image": (_with_container(image=f"{MARK}/miner:1"), MARK),
    "variable": (_with_container(env=[{"name": "LD_PRELOAD", "value": "/evil.so"}]), "LD_PRELOAD"),
    "claim": (_pod(volumes=[{"name": "c", "persistentVolumeClaim": {"claimName": "evil-claim"}}]), "evil-claim"),
    "CSI": (
        _pod(volumes=[{"name": "c", "csi": {"driver": "d.io", "volumeAttributes": {"share": "evil"}}}]),
        "share evil",
    ),
    "token": (
        _pod(
            volumes=[
                {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "evil"}}]}}
            ]
        ),
        "account for evil",
    ),
    "account": (_pod(serviceAccountName="evil-account"), "evil-account"),
    "toleration": (_pod(tolerations=[{"operator": "Exists"}]), "tolerations"),
    "node": (_pod(nodeName="evil-node"), "evil-node"),
    "alias": (_pod(hostAliases=[{"ip": "6.6.6.6", "hostnames": ["evil"]}]), "6.6.6.6"),
    "priority": (_pod(priorityClassName="system-node-critical"), "system-node-critical"),
}
_RULES = [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]
_HOOK = {
    "name": "a.evil.io",
    "clientConfig": {"url": f"https://{MARK}"},
    "rules": _RULES,
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
}
_RBAC = "rbac.authorization.k8s.io"
OBJECTS: dict[str, tuple[dict[str, Any], str]] = {
    "cluster role": (
        _object(
            f"{_RBAC}/v1",
            "ClusterRole",
            namespace=None,
            rules=[{"apiGroups": ["*"], "resources": ["evils"], "verbs": ["*"]}],
        ),
        "evils",
    ),
    "role": (
        _object(f"{_RBAC}/v1", "Role", rules=[{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]),
        "get on secrets",
    ),
    "binding": (
        _object(
            f"{_RBAC}/v1",
            "RoleBinding",
            roleRef={"apiGroup": _RBAC, "kind": "Role", "name": "r"},
            subjects=[{"kind": "ServiceAccount", "name": "evil", "namespace": "default"}],
        ),
        "default/evil",
    ),
    "validating webhook": (
        _object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", namespace=None, webhooks=[_HOOK]),
        MARK,
    ),
    "mutating webhook": (
        _object("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", namespace=None, webhooks=[_HOOK]),
        MARK,
    ),
    "API service": (
        _object(
            "apiregistration.k8s.io/v1",
            "APIService",
            name="v1.evil.io",
            namespace=None,
            spec={
                "group": "evil.io",
                "version": "v1",
                "groupPriorityMinimum": 1,
                "versionPriority": 1,
                "service": {"namespace": "evil", "name": "api"},
            },
        ),
        "evil/api",
    ),
    "priority class": (_object("scheduling.k8s.io/v1", "PriorityClass", namespace=None, value=123456789), "123456789"),
    "runtime class": (_object("node.k8s.io/v1", "RuntimeClass", namespace=None, handler="evil"), "handler evil"),
    "external name": (_object("v1", "Service", spec={"type": "ExternalName", "externalName": MARK}), MARK),
    "load balancer": (_object("v1", "Service", spec={"type": "LoadBalancer", "ports": [{"port": 80}]}), "LoadBalancer"),
    "finalizer": (
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "x", "namespace": "default", "finalizers": ["evil.io/f"]},
        },
        "evil.io/f",
    ),
    "annotation": (
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {
                "name": "x",
                "namespace": "default",
                "annotations": {"eks.amazonaws.com/role-arn": "arn:evil"},
            },
        },
        "arn:evil",
    ),
    "unknown kind": (_object("evil.io/v1", "Evil", spec={"do": MARK}), MARK),
    "pod in unknown kind": (
        _object(
            "argoproj.io/v1alpha1",
            "Rollout",
            spec={"a": "b" * 200, "template": {"spec": _with_container(securityContext={"privileged": True})}},
        ),
        "privileged",
    ),
    "volume": (
        _object(
            "v1",
            "PersistentVolume",
            namespace=None,
            spec={"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/evil"}},
        ),
        "/evil",
    ),
    "network": (
        _object(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            spec={"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "6.6.6.0/24"}}]}]},
        ),
        "6.6.6.0/24",
    ),
    "ingress": (
        _object(
            "networking.k8s.io/v1",
            "Ingress",
            spec={
                "rules": [
                    {
                        "host": MARK,
                        "http": {
                            "paths": [
                                {
                                    "path": "/",
                                    "pathType": "Prefix",
                                    "backend": {"service": {"name": "s", "port": {"number": 80}}},
                                }
                            ]
                        },
                    }
                ]
            },
        ),
        MARK,
    ),
}
SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "command": ({"command": ["python", MARK]}, MARK),
    "script": ({"command": ["sh", "-c", "\n".join([*(f"echo {n}" for n in range(12)), MARK])]}, MARK),
    "long line": ({"command": ["sh", "-c", f"echo {'x' * 400}; {MARK}; echo {'y' * 400}"]}, MARK),
    "image": ({"image": f"{MARK}/{'long/' * 20}train:2"}, MARK),
    "variable": ({"env": {"LD_PRELOAD": "/evil.so"}}, "LD_PRELOAD"),
    "Secret": ({"env": {"A": {"secret": {"name": "evil-secret", "key": "k"}}}}, "evil-secret"),
}


_WORKER = {"name": "worker"}
PATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "variable": ({"containers": [{**_WORKER, "env": [{"name": "LD_PRELOAD", "value": "/evil.so"}]}]}, "LD_PRELOAD"),
    "command": ({"containers": [{**_WORKER, "command": ["sh", "-c", f"{'x' * 500}; {MARK}"]}]}, MARK),
    "alias": ({"hostAliases": [{"ip": "6.6.6.6", "hostnames": ["evil"]}]}, "6.6.6.6"),
}


def _job(name: str, **fields: Any) -> dict[str, Any]:
    spec = {
        "image": "example.com/train:1",
        "command": ["python", "train.py"],
        "strategy": "single",
        "workers": {"cpu": 1, "memory": "1Gi"},
        **fields,
    }
    return {"kind": "TrainingJob", "metadata": {"name": name, "team": "vision"}, "spec": spec}


def _written(objects: list[Any], name: str = "own") -> dict[str, Any]:
    return {"kind": "KubernetesObjects", "metadata": {"name": name}, "spec": {"objects": objects}}


def _files(documents: list[dict[str, Any]], more: dict[str, str] | None = None) -> dict[str, str]:
    text = "---\n".join(json.dumps({"apiVersion": "avactl.dev/v1", **document}) + "\n" for document in documents)
    return {"platform.yaml": PLATFORM, "specs.yaml": text, **(more or {})}


def _config_map(number: int, text: str) -> Any:
    return _object("v1", "ConfigMap", f"m{number:03}-{'n' * 40}", "default", data={"key": text})


def forgeries() -> Iterator[Forgery]:
    """Yield all forgeries, the same ones each time."""
    chance = random.Random(1)
    for what, (pod, word) in PODS.items():
        for how in ("new", "new, behind others", "changed", "from a file"):
            yield _manifest(f"pod {what}, {how}", daemon_set(pod), daemon_set(_pod()), how, word, chance)
    for what, (body, word) in OBJECTS.items():
        for how in ("new", "new, behind others", "from a file"):
            yield _manifest(f"{what}, {how}", body, None, how, word, chance)
    for what, (fields, word) in SPECS.items():
        for how, hide in HIDE_IN_SPECS.items():
            old, new = _job("job"), _job("job")
            merge(new["spec"], fields)
            before, after = hide(old, new, chance)
            yield Forgery(f"spec {what}, {how}", _files(before), _files(after), (word,))
    for what, (pod, word) in PATCHES.items():
        for how, hide in HIDE_IN_SPECS.items():
            old, new = _job("job"), _job("job")
            new["patches"] = [{"target": {"kind": "Job"}, "merge": {"spec": {"template": {"spec": pod}}}}]
            before, after = hide(old, new, chance)
            yield Forgery(f"patch {what}, {how}", _files(before), _files(after), (word,))


def _manifest(
    name: str, body: dict[str, Any], plain: dict[str, Any] | None, how: str, word: str, chance: random.Random
) -> Forgery:
    others = [_config_map(n, "a") for n in range(chance.choice((5, 60)))] if "behind" in how else []
    changed = [{**each, "data": {"key": "b" * 200}} for each in others]
    if how == "changed":
        return Forgery(name, _files([_written([plain])]), _files([_written([body])]), (word,))
    if how == "from a file":
        spec = {"kind": "KubernetesObjects", "metadata": {"name": "own"}, "spec": {"files": ["objects"]}}
        config = {"avactl.yaml": "exclude: [objects]\n"}
        first = json.dumps(_config_map(0, "a"))
        base, head = ({**config, "objects/a.yaml": text} for text in (first, f"{first}\n---\n{json.dumps(body)}\n"))
        return Forgery(name, _files([spec], base), _files([spec], head), (word,))
    before = [_written(others)] if others else []
    return Forgery(name, _files([_job("job"), *before]), _files([_job("job"), _written([*changed, body])]), (word,))


def merge(spec: dict[str, Any], fields: dict[str, Any]) -> None:
    """Set fields of a spec; variables are added."""
    for key, value in copy.deepcopy(fields).items():
        if isinstance(value, dict):
            spec.setdefault(key, {}).update(value)
        else:
            spec[key] = value


Documents = list[dict[str, Any]]
Hide = Callable[[dict[str, Any], dict[str, Any], random.Random], tuple[Documents, Documents]]


def _plain(old: dict[str, Any], new: dict[str, Any], chance: random.Random) -> tuple[Documents, Documents]:
    return [old], [new]


def _new(old: dict[str, Any], new: dict[str, Any], chance: random.Random) -> tuple[Documents, Documents]:
    return [_job("other")], [_job("other"), new]


def _behind_variables(old: dict[str, Any], new: dict[str, Any], chance: random.Random) -> tuple[Documents, Documents]:
    names = [f"AAA_{n:03}_{'X' * 40}" for n in range(chance.choice((5, 100, 600)))]
    for side, value in ((old, "1"), (new, "2")):
        given = side["spec"].get("env", {})
        side["spec"]["env"] = {**dict.fromkeys(names, value), **given}
    return [old], [new]


def _among_jobs(old: dict[str, Any], new: dict[str, Any], chance: random.Random) -> tuple[Documents, Documents]:
    count = chance.choice((5, 40, 120))
    others = [[_job(f"a-{n:03}", env={"N": f"{n}-{side}"}) for n in range(count)] for side in "ab"]
    return [*others[0], old], [*others[1], new]


def _long_name(old: dict[str, Any], new: dict[str, Any], chance: random.Random) -> tuple[Documents, Documents]:
    for each in (old, new):
        each["metadata"]["name"] = "n" * 38
    return [old], [new]


HIDE_IN_SPECS: dict[str, Hide] = {
    "changed": _plain,
    "new": _new,
    "behind variables": _behind_variables,
    "among jobs": _among_jobs,
    "long name": _long_name,
}
