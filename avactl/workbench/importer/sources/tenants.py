"""Namespaces with RBAC, quotas and limit ranges → Teams and Quotas."""

from __future__ import annotations

from typing import Any

from avactl.contracts.foreign_keys import key_owner
from avactl.contracts.names import GPU_RESOURCES
from avactl.workbench.importer.gpus import models_of
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.metadata import take_common

SYSTEM = ("kube-system", "kube-public", "kube-node-lease", "default")
_SYSTEM_PREFIXES = (
    "kube-",
    "openshift",
    "gke-",
    "calico-",
    "cilium",
    "istio-",
    "cert-manager",
    "gpu-operator",
    "monitoring",
    "ingress-",
    "kueue-",
    "volcano-",
    "kubeflow-",
    "avactl-",
    "argocd",
    "flux-",
    "kuberay-",
)
_MEMBER_ROLES = {"admin": "admins", "edit": "users", "view": "viewers", "cluster-admin": "admins"}
"""Kubernetes' roles for users of a namespace → members of a Team."""
_PSS_LABEL = "pod-security.kubernetes.io/enforce"


def is_system(namespace: str) -> bool:
    """Return True for a namespace of the cluster's own software, which is no team's."""
    return namespace in SYSTEM or namespace.startswith(_SYSTEM_PREFIXES)


def make_teams(context: Context, namespaces: list[GivenValue]) -> list[ImportedSpec]:
    """Return the Teams: of the given namespaces, and of those in which other specs are."""
    for given in namespaces:
        context.team(given.name)
    made = []
    for team, own in context.namespaces.items():
        if set(own) <= set(context.known):
            continue  # the repository has the team
        spec = ImportedSpec("Team", team, None, {})
        listed = []
        for name in own:
            found = next((each for each in namespaces if each.name == name), None)
            listed.append(_namespace_entry(spec, name, found))
            _read_members(context, spec, name)
        if listed != [{"name": team}]:
            spec.spec["namespaces"] = listed
        _read_accounts(context, spec, team, own)
        made.append(spec)
    return made


def _namespace_entry(spec: ImportedSpec, name: str, given: GivenValue | None) -> Body:
    """Return an entry of `namespaces`. Without a level of pod security, `baseline` is the next one to no level."""
    if given is None:
        return {"name": name, "podSecurity": "baseline"}
    reader = ImportReader(given)
    reader.losses = spec.losses
    spec.given.append(given)
    labels: Body = given.get("metadata", "labels") or {}
    take_common(reader, (*labels, *(given.get("metadata", "annotations") or ())))
    made: Body = {"name": name}
    level = labels.get(_PSS_LABEL)
    if level != "restricted":
        made["podSecurity"] = "baseline"
    if level in (None, "privileged"):
        at = ("metadata", "labels", _PSS_LABEL) if level else ("metadata", "name")
        said = "privileged pods are not refused" if level is None else "the level is `privileged`"
        reader.lose(
            at,
            f"{said}; namespaces of teams have at most `baseline`",
            "check `avactl diff`, and move privileged pods to a namespace of the platform",
        )
    kept = {key: value for key, value in labels.items() if not key_owner(key) and key != "name"}
    if kept:
        made["labels"] = kept
    for key in labels:
        if key_owner(key) and key not in (_PSS_LABEL, "kubernetes.io/metadata.name") and "pod-security" not in key:
            reader.lose(("metadata", "labels", key), f"it belongs to {key_owner(key)}", "")
    for key in given.get("metadata", "annotations") or ():
        reader.lose(("metadata", "annotations", key), "namespaces of teams have no further annotations", "")
    reader.note(
        (),
        "a Team isolates its namespaces: pods of other teams no longer reach its pods",
        "list teams that call it: `talksTo`",
    )
    reader.take("spec")
    return made


def _read_members(context: Context, spec: ImportedSpec, namespace: str) -> None:
    """Make bindings of Kubernetes' user roles part of the Team; other bindings stay manifests."""
    for binding in context.find("RoleBinding", namespace):
        role = binding.get("roleRef", "name")
        subjects = binding.get("subjects") or []
        if binding.get("roleRef", "kind") != "ClusterRole" or role not in _MEMBER_ROLES:
            continue
        if not subjects or not all(isinstance(each, dict) and _is_plain_subject(each) for each in subjects):
            continue  # accounts of programs need their own rights
        context.used.add(binding)
        spec.given.append(binding)
        reader = ImportReader(binding)
        reader.losses = spec.losses
        take_common(reader)
        members = spec.spec.setdefault("members", {})
        for index, subject in enumerate(subjects):
            key, place = _MEMBER_ROLES[role], ("subjects", index)
            if subject["kind"] == "Group" and key == "admins":
                key = "groups"
                reader.lose(place, "groups are members, and do not manage Secrets", "list its users as `admins`")
            elif subject["kind"] == "Group" and key == "users":
                key = "groups"
            elif subject["kind"] == "User" and key == "viewers":
                reader.lose(place, "viewers are groups", "make a group of them")
                continue
            if subject["name"] not in members.setdefault(key, []):
                members[key].append(subject["name"])
            reader.take(*place)
        why = f"the roles of teams take the place of `{role}`: no Secrets, no RBAC, no quotas"
        reader.take("roleRef", "apiGroup")
        reader.take("roleRef", "kind")
        reader.lose(("roleRef", "name"), why, "docs/security.md lists their rules")
        reader.lose_rest("a Team has no key for it", "")


def _is_plain_subject(subject: Body) -> bool:
    name = subject.get("name")
    return subject.get("kind") in ("User", "Group") and isinstance(name, str) and not name.startswith("system:")


def _read_accounts(context: Context, spec: ImportedSpec, team: str, namespaces: list[str]) -> None:
    """Make the service accounts that workloads use part of the Team, with their cloud roles."""
    listed: list[Body] = []
    for name in sorted(context.accounts.get(team, ())):
        entry: Body = {"name": name}
        for namespace in namespaces:
            for account in context.find("ServiceAccount", namespace, lambda each, name=name: each.name == name):  # type: ignore[misc]
                context.used.add(account)
                spec.given.append(account)
                reader = ImportReader(account)
                reader.losses = spec.losses
                notes = account.get("metadata", "annotations") or {}
                take_common(reader, notes)
                kept = {key: value for key, value in notes.items() if not key.startswith("kubectl.kubernetes.io/")}
                if kept:
                    entry["annotations"] = kept
                reader.take("secrets")  # Kubernetes makes them
                if account.get("automountServiceAccountToken") is not False:
                    reader.take("automountServiceAccountToken")
                secrets = reader.take("imagePullSecrets") or []
                own = spec.spec.setdefault("pullSecrets", [])
                own += [each["name"] for each in secrets if each.get("name") and each["name"] not in own]
                reader.lose_rest("accounts of a Team have no key for it", "")
        listed.append(entry)
    if listed:
        spec.spec["serviceAccounts"] = listed
    if not spec.spec.get("pullSecrets"):
        spec.spec.pop("pullSecrets", None)


_HARD_LIMITS = {
    "requests.cpu": "cpu",
    "cpu": "cpu",
    "requests.memory": "memory",
    "memory": "memory",
    "requests.storage": "storage",
    "pods": "pods",
    "count/pods": "pods",
}


def add_quotas(
    context: Context, given: list[GivenValue], models: dict[str, str], made: dict[str, ImportedSpec]
) -> None:
    """Add the Quotas of ResourceQuotas and LimitRanges to `made`, by team.

    `models`: GPU models of the cluster → their extended resources.
    """
    for each in given:
        team = context.team(each.namespace)
        spec = made.setdefault(team, ImportedSpec("Quota", "quota", team, {}))
        reader = ImportReader(each)
        reader.losses = spec.losses
        spec.given.append(each)
        take_common(reader)
        if each.kind == "ResourceQuota":
            _resource_quota(reader, spec.spec, models)
        else:
            _limit_range(reader, spec.spec)
        reader.lose_rest("a Quota has no key for it", "keep it as a manifest, if it is needed")


def _resource_quota(reader: ImportReader, body: Body, models: dict[str, str]) -> None:
    hard: Body = reader.given.get("spec", "hard") or {}
    if reader.given.get("spec", "scopes") or reader.given.get("spec", "scopeSelector"):
        for key in ("scopes", "scopeSelector"):
            if reader.given.get("spec", key):
                reader.lose(("spec", key), "a Quota counts all pods of a team", "")
    for key, value in hard.items():
        place = ("spec", "hard", key)
        counted = "pods" if _HARD_LIMITS.get(key) == "pods" else "GPUs"
        is_gpus = key.removeprefix("requests.") in GPU_RESOURCES
        if (counted == "pods" or is_gpus) and not str(value).isdecimal():
            reader.lose(place, f"it is no number of {counted}", "")
        elif key in _HARD_LIMITS:
            _keep_least(
                body, _HARD_LIMITS[key], int(value) if _HARD_LIMITS[key] == "pods" else str(value), place, reader
            )
        elif key.startswith("limits."):
            reader.lose(place, "a Quota counts requests", "")
        elif is_gpus:
            reader.take(*place)
            same = models_of(key.removeprefix("requests."), models)
            if not same:
                reader.lose(place, "the GPU model is not known", "import the nodes, too")
                continue
            body.setdefault("gpus", []).append({"gpu": same[0], "guaranteed": int(value)})
            if len(same) > 1:
                shown = ", ".join(same)
                reader.lose(place, f"Quotas count each model; the spec says {same[0]} of {shown}", "divide it")


def _keep_least(body: Body, key: str, value: Any, place: tuple[str, ...], reader: ImportReader) -> None:
    reader.take(*place)
    if key in body and body[key] != value:
        reader.lose(place, f"a Quota is for all namespaces of a team, and has `{key}: {body[key]}`", "write their sum")
    else:
        body[key] = value


def _limit_range(reader: ImportReader, body: Body) -> None:
    for index, limit in enumerate(reader.given.get("spec", "limits") or ()):
        if not isinstance(limit, dict):
            continue
        place = ("spec", "limits", index)
        reader.take(*place, "type")
        if limit.get("type") == "Container":
            most = limit.get("max") or {}
            for name, key in (("cpu", "podMaxCpu"), ("memory", "podMaxMemory")):
                if name in most:
                    body[key] = str(most[name])
                    reader.take(*place, "max", name)
            for key in ("default", "defaultRequest"):
                if limit.get(key):
                    reader.lose((*place, key), "containers without requests get 100m CPU and 256Mi memory", "")
