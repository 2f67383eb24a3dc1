"""Checks of pod settings: the team's pod-security level, accounts, taints and pools; and what Kubernetes refuses."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from avactl.contracts.names import CAPACITY
from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import did_you_mean, one_of
from avactl.program.capacity.capacity import gpu_model
from avactl.program.checks.credentials import argument_problems, credential_problems
from avactl.program.checks.pod_security_levels import level_problems
from avactl.program.checks.words import word_problems
from avactl.program.lowering.gpu_request import VISIBLE_DEVICES
from avactl.program.program import Item, Program
from avactl.program.workload import GpuCompute
from avactl.spec.schema.pod_affinity import NODE_TAINTS
from avactl.spec.schema.pod_settings import EnvFrom, PodSettings
from avactl.spec.schema.pod_volumes import SOURCES

Path = tuple[str | int, ...]


def pod_problems(
    item: Item,
    program: Program,
    settings: PodSettings | None,
    path: Path,
    computes: Sequence[GpuCompute] = (),
    *,
    other_account: bool = False,
) -> Iterator[Diagnostic]:
    """Yield the problems of the settings at `path`. `computes`: the requests of the pods that have them.
    `other_account`: avactl runs containers in these pods whose account has rights."""
    if settings is None:
        return
    yield from _check_duplicates(item, settings, path)
    yield from _check_volumes(item, settings, path)
    yield from _check_files(item, settings, path)
    yield from _check_ports(item, settings, path)
    yield from level_problems(item, program, settings, path)
    for key, containers in (("sidecars", settings.sidecars), ("initContainers", settings.init_containers)):
        for index, container in enumerate(containers):
            at = (*path, key, index)
            yield from credential_problems(item, container.env, (*at, "env"))
            yield from argument_problems(item, container.command, (*at, "command"))
            yield from argument_problems(item, container.args, (*at, "args"))
            yield from word_problems(item, container.command, (*at, "command"))
            yield from word_problems(item, container.args, (*at, "args"))
            yield from _env_from(item, program, container.env_from, (*at, "envFrom"), gpus=False)
    gpus = any(compute.gpus for compute in computes)
    yield from _env_from(item, program, settings.env_from, (*path, "envFrom"), gpus=gpus)
    yield from _check_account(item, program, settings, path, other_account)
    yield from _check_tolerations(item, program, settings, path)
    yield from _check_nodes(item, program, settings, path, computes)
    yield from _check_affinity(item, settings, path)
    if settings.dns_policy == "None" and (settings.dns_config is None or not settings.dns_config.nameservers):
        message = "`dnsPolicy: None` needs name servers"
        hint = "add `dnsConfig: {nameservers: [IP]}`"
        yield Diagnostic("missing-key", message, item.span(*path, "dnsPolicy"), hint=hint)


def _check_duplicates(item: Item, settings: PodSettings, path: Path) -> Iterator[Diagnostic]:
    for keys in (("volumes",), ("sidecars", "initContainers")):
        seen: set[str] = set()
        for key in keys:
            for index, entry in enumerate(item.doc.get(*path, key) or ()):
                name = entry.get("name")
                if name in seen:
                    span = item.span(*path, key, index, "name")
                    what = "volume" if key == "volumes" else "container"
                    yield Diagnostic("duplicate-entry", f"{what} `{name}` is listed twice", span, hint="rename one")
                seen.add(name)


def _check_files(item: Item, settings: PodSettings, path: Path) -> Iterator[Diagnostic]:
    """Yield files of a volume that have one path: Kubernetes refuses the pod, or one of them hides the other."""
    for index, volume in enumerate(settings.volumes):
        at: Path = (*path, "volumes", index)
        own = [
            (name, (*at, name), getattr(volume, key)) for name, key in _FILE_SOURCES if getattr(volume, key) is not None
        ]
        sources = [] if volume.projected is None else volume.projected.sources
        for number, source in enumerate(sources):
            inside = (*at, "projected", "sources", number)
            own += [
                (name, (*inside, name), getattr(source, key))
                for name, key in _PROJECTED_SOURCES
                if getattr(source, key) is not None
            ]
        seen: set[str] = set()
        for name, where, source in own:
            token = name == "serviceAccountToken"
            for place, file in enumerate([source] if token else source.items):
                found = posixpath.normpath(file.path)
                if found in seen:
                    span = item.span(*where, *(() if token else ("items", place)), "path")
                    message = f"volume `{volume.name}` has two files `{found}`"
                    yield Diagnostic("duplicate-entry", message, span, hint="write another `path`")
                seen.add(found)


def _check_ports(item: Item, settings: PodSettings, path: Path) -> Iterator[Diagnostic]:
    """Yield names and ports that a container lists twice: Kubernetes refuses the pod."""
    for key, containers in (("sidecars", settings.sidecars), ("initContainers", settings.init_containers)):
        for index, container in enumerate(containers):
            names: set[str] = set()
            numbers: set[tuple[int, str]] = set()
            for place, port in enumerate(container.ports):
                at = (*path, key, index, "ports", place)
                if port.name in names:
                    message = f"container `{container.name}` has two ports `{port.name}`"
                    yield Diagnostic("duplicate-entry", message, item.span(*at, "name"), hint="rename one")
                if (port.container_port, port.protocol) in numbers:
                    message = f"container `{container.name}` lists port {port.container_port} twice"
                    yield Diagnostic("duplicate-entry", message, item.span(*at, "containerPort"), hint="remove one")
                numbers.add((port.container_port, port.protocol))
                names |= {port.name} if port.name is not None else set()


_FILE_SOURCES = (("secret", "secret"), ("configMap", "config_map"))
_PROJECTED_SOURCES = (*_FILE_SOURCES, ("downwardAPI", "downward_api"), ("serviceAccountToken", "service_account_token"))


def _check_volumes(item: Item, settings: PodSettings, path: Path) -> Iterator[Diagnostic]:
    mounted = {m.name for c in (*settings.sidecars, *settings.init_containers) for m in c.volume_mounts}
    for index, volume in enumerate(settings.volumes):
        at = (*path, "volumes", index)
        yield from _one_of(item, volume, SOURCES, at, f"volume `{volume.name}`")
        if volume.projected is not None:
            kinds = ("secret", "config_map", "service_account_token", "downward_api")
            for number, source in enumerate(volume.projected.sources):
                yield from _one_of(item, source, kinds, (*at, "projected", "sources", number), "the source")
        if volume.mount_path is None and volume.name not in mounted:
            yield Diagnostic(
                "without-effect",
                f"volume `{volume.name}` is mounted in no container",
                item.span(*at, "name"),
                severity="warning",
                hint="add `mountPath: …` for the main container, or `volumeMounts` of another one",
            )


def _one_of(item: Item, value: Any, names: Iterable[str], at: Path, what: str) -> Iterator[Diagnostic]:
    keys = {name: type(value).model_fields[name].alias or name for name in names}
    found = [keys[name] for name in keys if getattr(value, name) is not None]
    if not found:
        hint = f"add one of {one_of(list(keys.values()))}"
        yield Diagnostic("missing-key", f"{what} has no source", item.span(*at), hint=hint)
    elif len(found) > 1:
        message = f"{what} has several sources: {', '.join(f'`{key}`' for key in found)}"
        span = item.span(*at, found[1], key=True)
        yield Diagnostic("conflicting-keys", message, span, hint="keep one of them")


def _env_from(
    item: Item, program: Program, sources: Sequence[EnvFrom], path: Path, *, gpus: bool
) -> Iterator[Diagnostic]:
    for index, source in enumerate(sources):
        at = (*path, index)
        yield from _one_of(item, source, ("secret_ref", "config_map_ref"), at, "the entry")
        # The device plugin sets the variable, and what the container says would win.
        alone = gpus and not program.cluster_spec(item.cluster).daemons.scheduler
        if alone and VISIBLE_DEVICES.startswith(source.prefix):
            yield Diagnostic(
                "invalid-value",
                f"the keys of `envFrom` can be {VISIBLE_DEVICES}, by which the device plugin gives the pods their GPUs",
                item.span(*at),
                hint="add a `prefix`, or list the variables in `env`",
            )


def _check_account(
    item: Item, program: Program, settings: PodSettings, path: Path, other_account: bool
) -> Iterator[Diagnostic]:
    name, team = settings.service_account_name, program.team(str(item.team))
    known = [account.name for account in team.spec.service_accounts]
    if name is not None and name not in known:
        hint = did_you_mean(name, known, "accounts of the team") if known else ""
        yield Diagnostic(
            "missing-reference",
            f"team {team.name} has no service account `{name}`",
            item.span(*path, "serviceAccountName"),
            hint=hint or f"add `serviceAccounts: [{{name: {name}}}]` to Team {team.name}; its file is the platform's",
            notes=(Note(team.span("spec", "serviceAccounts", key=True), "accounts that its specs may use"),)
            if known
            else (),
        )
    if settings.automount_service_account_token and name is None:
        yield Diagnostic(
            "missing-key",
            "the account `avactl-run` has no rights: its token is of no use",
            item.span(*path, "automountServiceAccountToken"),
            hint="add `serviceAccountName: NAME`, an account of the team",
        )
    if not other_account:
        return
    tokens = [(*path, "automountServiceAccountToken")] if settings.automount_service_account_token else []
    for index, volume in enumerate(settings.volumes):
        for number, source in enumerate(volume.projected.sources if volume.projected is not None else ()):
            if source.service_account_token is not None:
                tokens.append((*path, "volumes", index, "projected", "sources", number, "serviceAccountToken"))
    for at in tokens:
        yield Diagnostic(
            "invalid-value",
            "pods of this strategy run containers of avactl, whose rights the token would have",
            item.span(*at),
            hint="remove it; cloud roles work without it, by annotations of the Team's `serviceAccounts`",
        )


def _check_tolerations(item: Item, program: Program, settings: PodSettings, path: Path) -> Iterator[Diagnostic]:
    known = program.taints(item.cluster)
    for index, toleration in enumerate(settings.tolerations):
        at = (*path, "tolerations", index)
        if toleration.key not in (*known, *NODE_TAINTS):
            yield Diagnostic(
                "missing-reference",
                f"no pool of cluster {item.cluster} has the taint `{toleration.key}`; pods tolerate no others",
                item.span(*at, "key"),
                hint="it is the taint of spot pools: write `spot: allow` in `spec`"
                if toleration.key == CAPACITY
                else did_you_mean(toleration.key, [*known, *NODE_TAINTS], "taints"),
            )
        if toleration.operator == "Exists" and toleration.value:
            hint = "remove `value`, or write `operator: Equal`"
            message = "`operator: Exists` has no value"
            yield Diagnostic("conflicting-keys", message, item.span(*at, "value"), hint=hint)
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            message = "`tolerationSeconds` is for `effect: NoExecute`"
            hint = "write `effect: NoExecute`, or remove the key"
            yield Diagnostic("conflicting-keys", message, item.span(*at, "tolerationSeconds"), hint=hint)


_LABELS_OF_CLOUDS = {"agentpool", "accelerator", "storageprofile", "storagetier"}
"""Labels without a prefix that Azure sets."""


def _check_nodes(
    item: Item, program: Program, settings: PodSettings, path: Path, computes: Sequence[GpuCompute]
) -> Iterator[Diagnostic]:
    """Yield labels that no pool of the pods has."""
    if program.lacks_machines:
        return
    for compute in computes:
        if not compute.gpus and compute.pool is None:
            continue  # machines without GPUs need not be declared
        model = gpu_model(program, item.cluster, compute)
        pools = program.candidate_pools(item.cluster, model, compute.pool, compute.tolerates)
        for key, value in settings.node_selector.items():
            if pools and all(pool.spec.labels.get(key, value) != value for pool in pools):
                has = sorted({f"{key}: {pool.spec.labels[key]}" for pool in pools})
                yield Diagnostic(
                    "pod-never-fits",
                    f"the pools of these pods have no nodes with the label `{key}: {value}`",
                    item.span(*path, "nodeSelector", key),
                    hint=f"write `{has[0]}`, or remove the key",
                    notes=tuple(Note(pool.span("spec", "labels", key), f"pool {pool.name}") for pool in pools[:3]),
                )
                return
            # Keys without a prefix are users' own, but for those that clouds set.
            known = {own for pool in pools for own in pool.spec.labels}
            if pools and "/" not in key and key not in known | _LABELS_OF_CLOUDS:
                others = did_you_mean(key, known, "its labels") if known else "no pool has labels"
                yield Diagnostic(
                    "pod-never-fits",
                    f"no NodePool of these pods declares a label `{key}`: the pods wait if no machine has it",
                    item.span(*path, "nodeSelector", key, key=True),
                    severity="warning",
                    hint=f"write it into `labels` of a NodePool; {others}",
                )
                return


def _check_affinity(item: Item, settings: PodSettings, path: Path) -> Iterator[Diagnostic]:
    """Yield conditions whose values do not fit to their operator."""
    pending: list[tuple[Path, Any]] = [((*path, "affinity"), item.doc.get(*path, "affinity"))]
    while pending:
        at, value = pending.pop()
        if isinstance(value, list):
            pending += [((*at, index), entry) for index, entry in enumerate(value)]
        elif isinstance(value, dict):
            pending += [((*at, key), entry) for key, entry in value.items()]
            operator, values = value.get("operator"), value.get("values") or []
            if operator is None:
                continue
            wanted = {"In": "values", "NotIn": "values", "Gt": "one integer", "Lt": "one integer"}.get(operator)
            if wanted == "values" and not values:
                hint = "add `values: […]`"
            elif wanted == "one integer" and not (len(values) == 1 and str(values[0]).isdigit()):
                hint = 'write `values: ["4"]`'
            elif wanted is None and values:
                hint = "remove `values`"
            else:
                continue
            message = f"`operator: {operator}` needs {wanted or 'no values'}"
            yield Diagnostic("invalid-value", message, item.span(*at, "operator"), hint=hint)
