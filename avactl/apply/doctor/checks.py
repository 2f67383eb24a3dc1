"""Checks of a cluster against what the specs need: pure functions from both to findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from avactl.apply.doctor.live import Live, LiveResource
from avactl.apply.doctor.model import CheckState, DoctorFinding
from avactl.apply.doctor.needs import NeededNodes, ProgramNeeds
from avactl.apply.doctor.objects import SERVICE
from avactl.base.quantity import parse_quantity
from avactl.contracts.names import PICKER_GROUPS, PICKER_KINDS
from avactl.hardware.plugin_sharing import PluginSharing, find_plugin_sharing
from avactl.kinds.cluster.daemons.rbac import ADMINISTRATORS
from avactl.program.lowering.storage import offers_many
from avactl.program.references import CLAIM, CONFIG_MAP

_INSTALL_HINTS = {
    "resource.nvidia.com": "install NVIDIA's DRA driver, which brings ComputeDomains",
    "source.toolkit.fluxcd.io": "install Flux: `flux install`",
    "kustomize.toolkit.fluxcd.io": "install Flux: `flux install`",
    "argoproj.io": "install Argo CD, with the ApplicationSet controller",
    "pulumi.com": "install the Pulumi Kubernetes Operator 2",
    "gateway.networking.k8s.io": "install a Gateway controller, with the CRDs of the Gateway API",
    "inference.networking.k8s.io": "install a Gateway controller with the Inference Extension 1, and its CRDs",
    **dict.fromkeys(
        ("leaderworkerset.x-k8s.io", "disaggregatedset.x-k8s.io"),
        "install LeaderWorkerSet 0.9 or newer (sigs.k8s.io/lws)",
    ),
    "keda.sh": "install KEDA 2, or write `cpuUtilization` instead of `metrics` in `replicas`",
    "monitoring.coreos.com": "install the Prometheus Operator, or its CRDs",
    "resource.k8s.io": "enable dynamic resource allocation: Kubernetes 1.34 or newer has it",
}
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_MAX_SHOWN = 3
_RESOURCE_NAMES = {CLAIM: "claims", CONFIG_MAP: "configmaps", SERVICE: "services"}
_PRIVILEGED = {
    str(LiveResource(group, plural, namespaced=False))
    for group, plurals in ADMINISTRATORS.items()
    for plural in plurals
}
_ABSENT = frozenset(("",))
"""Stands for an object that does not exist: no ConfigMap has an empty key."""
CHECKS = (
    "version",
    "api",
    "gates",
    "storage",
    "nodes",
    "devices",
    "secrets",
    "claims",
    "configmaps",
    "services",
    "images",
    "rights",
)
"""All checks, in the order of the report."""


def check(needs: ProgramNeeds, live: Live, rights: bool = True) -> list[DoctorFinding]:
    """Return the findings of all checks. `rights`: also those of the caller, who applies the objects."""
    found = [
        *_check_version(needs, live),
        *_check_kinds(needs, live),
        *_check_gates(needs, live),
        *_check_pod_groups(live),
        *_check_storage(needs, live),
        *_check_devices(needs, live),
        *_check_pools(needs, live),
        *_check_secrets(needs, live),
        *_check_objects(needs, live),
        *_check_images(needs),
    ]
    found += _check_rights(needs, live) if rights else ()
    return sorted(found, key=lambda each: CHECKS.index(each.check))


def _first_names(names: Collection[str], many: str = "more") -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _MAX_SHOWN} {many}" if len(ordered) > _MAX_SHOWN else ""
    return ", ".join(ordered[:_MAX_SHOWN]) + more


def _check_version(needs: ProgramNeeds, live: Live) -> Iterator[DoctorFinding]:
    declared = needs.version.split(".")
    if live.version.partition("-")[0].partition("+")[0].split(".")[: len(declared)] == declared:
        yield DoctorFinding("version", CheckState.OK, f"Kubernetes {live.version}")
    else:
        minor = ".".join(live.version.split(".")[:2])
        yield DoctorFinding(
            "version",
            CheckState.FAILED,
            f"Kubernetes {live.version}; the specs declare {needs.version}",
            f'set `kubernetesVersion: "{minor}"` in Cluster {needs.cluster}',
        )


def _check_kinds(needs: ProgramNeeds, live: Live) -> Iterator[DoctorFinding]:
    missing = [kind for kind in needs.kinds.keys() - needs.defined if kind not in live.served]
    for version, kind in sorted(missing):
        group = version.rpartition("/")[0]
        remedy = _INSTALL_HINTS.get(group, f"install the CRD, or upgrade what serves {version}")
        users = _first_names(needs.users[version, kind])
        yield DoctorFinding("api", CheckState.FAILED, f"{kind} of {version} is not served; needed by {users}", remedy)
    versions = {kind: [v for v, other in live.served if other == kind] for kind in PICKER_KINDS.values()}
    if needs.watched and (unserved := [kind for kind, served in versions.items() if not served]):
        words = (
            f"{_first_names(unserved)} of {next(iter(PICKER_GROUPS))} not served: older endpoint pickers do not start"
        )
        words += f", newer ones ignore priorities and names of models; watched by {_first_names(needs.watched)}"
        remedy = "install the CRDs of the picker's release: llm-d-router, or the Gateway API Inference Extension"
        yield DoctorFinding("api", CheckState.WARNING, words, remedy)
    if len(missing) < len(needs.kinds):
        defined = (
            f", {len(own)} of them once the specs are applied" if (own := needs.defined - live.served.keys()) else ""
        )
        words = f"{len(needs.kinds) - len(missing)} of {len(needs.kinds)} kinds are served{defined}"
        yield DoctorFinding("api", CheckState.OK, words)


def _check_gates(needs: ProgramNeeds, live: Live) -> Iterator[DoctorFinding]:
    if not needs.gates:
        return
    if live.gates is None:
        words = f"{_first_names(needs.gates)}: this account may not read /metrics of the API server"
        yield DoctorFinding("gates", CheckState.UNKNOWN, words, "grant `get` on the non-resource URL /metrics")
        return
    off = {gate: users for gate, users in needs.gates.items() if live.gates.get(gate) is False}
    for gate, users in sorted(off.items()):
        words = f"feature gate {gate} is off; needed by {_first_names(users)}"
        remedy = f"start the API server, scheduler, controller manager and kubelets with --feature-gates={gate}=true"
        yield DoctorFinding("gates", CheckState.FAILED, words, remedy)
    if len(off) < len(needs.gates):
        yield DoctorFinding("gates", CheckState.OK, f"{_first_names(needs.gates.keys() - off.keys())} not switched off")


def _check_pod_groups(live: Live) -> Iterator[DoctorFinding]:
    """Warn of PodGroups that only older versions of the API have: the scheduler waits for those that it reads."""
    older = (live.scheduling or frozenset()) - {"v1", "v1beta1"}
    if older and "v1beta1" not in (live.scheduling or ()):
        words = f"PodGroups of scheduling.k8s.io are served as {_first_names(older)}, and the scheduler reads v1beta1"
        remedy = "pods with `schedulingGroup` wait; upgrade to Kubernetes 1.37, or serve v1beta1 (--runtime-config)"
        yield DoctorFinding("api", CheckState.WARNING, words, remedy)


def _check_storage(needs: ProgramNeeds, live: Live) -> Iterator[DoctorFinding]:
    if not needs.claims and not needs.provisioners:
        return
    if live.classes is None:
        yield _hidden_finding("storage", "storage classes")
        return
    good = 0
    defaults = [
        name
        for name, item in live.classes.items()
        if (item["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    for name, declared in sorted(needs.provisioners.items()):
        there = str(live.classes[name].get("provisioner")) if name in live.classes else declared
        if there != declared:
            words = f"storage class {name} has provisioner {there}; the specs declare {declared}"
            remedy = f"write `{there}` in `storageClasses.classes` of Cluster {needs.cluster}"
            yield DoctorFinding("storage", CheckState.FAILED, words, remedy)
    for (wanted, many), users in sorted(needs.claims.items(), key=lambda each: (each[0][0] or "", each[0][1])):
        chosen = wanted if wanted is not None else next(iter(defaults), "")
        item = live.classes.get(chosen)
        who = _first_names(users)
        if item is None and wanted is None:
            remedy = (
                f"set `storageClasses.default` of Cluster {needs.cluster}, or annotate a class with {_DEFAULT_CLASS}"
            )
            yield DoctorFinding("storage", CheckState.FAILED, f"no default storage class; needed by {who}", remedy)
        elif item is None:
            known = _first_names(live.classes) or "none"
            remedy = f"create it, or select another in `storageClasses` of Cluster {needs.cluster}; there are: {known}"
            yield DoctorFinding("storage", CheckState.FAILED, f"no storage class {wanted}; needed by {who}", remedy)
        elif many and offers_many(str(item.get("provisioner")), ()) is False:
            words = f"storage class {chosen} ({item.get('provisioner')}) offers no ReadWriteMany; needed by {who}"
            yield DoctorFinding(
                "storage", CheckState.FAILED, words, "select a class of a shared file system (CephFS, NFS, …)"
            )
        else:
            good += 1
    if good:
        yield DoctorFinding(
            "storage", CheckState.OK, f"{good} of {len(needs.claims)} combinations of class and access mode"
        )


def _check_devices(needs: ProgramNeeds, live: Live) -> Iterator[DoctorFinding]:
    if not needs.device_classes:
        return
    if live.device_classes is None:
        yield _hidden_finding("devices", "device classes")
        return
    for name, users in sorted(needs.device_classes.items()):
        if name not in live.device_classes:
            remedy = "install the DRA driver that brings it, or declare it in `deviceClasses` of the Cluster"
            yield DoctorFinding(
                "devices", CheckState.FAILED, f"no device class {name}; needed by {_first_names(users)}", remedy
            )


def _check_pools(needs: ProgramNeeds, live: Live) -> Iterator[DoctorFinding]:
    if live.nodes is None:
        if needs.pools:
            yield _hidden_finding("nodes", "nodes")
        return
    for pool in needs.pools:
        yield from _check_pool(needs, live, live.nodes, pool)


def _check_pool(
    needs: ProgramNeeds, live: Live, nodes: Mapping[str, dict[str, object]], pool: NeededNodes
) -> Iterator[DoctorFinding]:
    def labels(name: str) -> Mapping[str, str]:
        metadata = nodes[name]["metadata"]
        found = metadata.get("labels") if isinstance(metadata, dict) else None
        return found or {}

    if pool.nodes:
        members = [name for name in pool.nodes if name in nodes]
        if absent := set(pool.nodes) - nodes.keys():
            words = f"pool {pool.name}: no node {_first_names(absent)}"
            remedy = f"join it to the cluster, or remove it from `nodes` ({pool.where})"
            yield DoctorFinding("nodes", CheckState.FAILED, words, remedy)
    else:
        members = [name for name in nodes if pool.labels.items() <= labels(name).items()]
        if len(members) < pool.least:
            wanted = " ".join(f"{key}={value}" for key, value in sorted(pool.labels.items()))
            words = (
                f"pool {pool.name}: {len(members)} of {pool.least} nodes have the labels {wanted.replace(' ', ', ')}"
            )
            remedy = f"`kubectl label node NODE {wanted}`, or correct the number ({pool.where})"
            yield DoctorFinding("nodes", CheckState.FAILED, words, remedy)
    bare = set[str]()
    for resource, least in pool.resources.items():
        poor = {name for name in members if _amount(nodes[name], resource) < least}
        withdrawn = {name for name in poor if _amount(nodes[name], resource, "capacity") >= least}
        bare |= poor
        if poor - withdrawn:
            number = f"{len(poor - withdrawn)} of {len(members)}"
            words = f"pool {pool.name}: {number} nodes offer fewer than {least} {resource}"
            remedy = f"install the device plugin of {resource} and its driver; look at {_first_names(poor - withdrawn)}"
            yield DoctorFinding("devices", CheckState.FAILED, words, remedy)
        if withdrawn:
            words = f"pool {pool.name}: the device plugin has withdrawn {resource} of {len(withdrawn)} nodes"
            remedy = f"repair the GPUs that its log names, and restart it; look at {_first_names(withdrawn)}"
            yield DoctorFinding("devices", CheckState.FAILED, words, remedy)
    shared = _find_shared(nodes, members, labels) if pool.gpus and not pool.driver else {}
    bare |= shared.keys()
    if shared:
        sharing = next(iter(shared.values()))
        words = f"pool {pool.name}: the device plugin shares the GPUs of {len(shared)} nodes ({sharing.way})"
        remedy = f"{sharing.remedy}; look at {_first_names(shared)}"
        yield DoctorFinding("devices", CheckState.FAILED, words, remedy)
    yield from _check_choice(live, pool, [labels(name) for name in members])
    if pool.driver and live.devices is None:
        yield _hidden_finding("devices", f"the devices (ResourceSlices) of pool {pool.name}")
    elif pool.driver and live.devices is not None:
        silent = set(members) - live.devices.get(pool.driver, set())
        bare |= silent
        if silent:
            words = f"pool {pool.name}: DRA driver {pool.driver} publishes no devices of {len(silent)} nodes"
            remedy = f"install the driver; look at {_first_names(silent)}"
            yield DoctorFinding("devices", CheckState.FAILED, words, remedy)
    if members and len(members) >= pool.least and not bare:
        what = pool.driver or ", ".join(pool.resources)
        words = f"pool {pool.name}: {len(members)} nodes"
        words += f" with {pool.gpus} GPUs each ({what})" if pool.gpus else " without GPUs"
        yield DoctorFinding("nodes", CheckState.OK, words)


def _find_shared(
    nodes: Mapping[str, dict[str, object]], members: Iterable[str], labels: Callable[[str], Mapping[str, str]]
) -> dict[str, PluginSharing]:
    """Return the nodes whose GPUs the device plugin shares, with how."""
    found = {name: find_plugin_sharing(labels(name), _amounts(nodes[name])) for name in members}
    return {name: sharing for name, sharing in sorted(found.items()) if sharing is not None}


def _check_choice(live: Live, pool: NeededNodes, members: list[Mapping[str, str]]) -> Iterator[DoctorFinding]:
    """Yield differences between the pool's `devicesChosenBy` and the settings of NVIDIA's device plugin."""
    if not pool.gpus or pool.driver or not any(name.startswith("nvidia.") for name in pool.resources):
        return
    if live.plugins is None:
        yield _hidden_finding("devices", f"the DaemonSet of the device plugin of pool {pool.name}")
        return
    plugins = [each for each in live.plugins if any(each.is_on(labels) for labels in members)]
    kubelet = next((each for each in plugins if each.chosen_by == "kubelet"), None)
    if kubelet is not None and pool.chosen_by != "kubelet":
        words = (
            f"pool {pool.name}: the kubelet chooses the GPUs of pods, not avactl's scheduler: "
            f"{kubelet.why} ({kubelet.where})"
        )
        remedy = (
            f"use `allocation: dra`, or write `devicesChosenBy: kubelet` ({pool.where}); or set DEVICE_LIST_STRATEGY="
            "envvar and PASS_DEVICE_SPECS=false for the plugin, and `cdi.enabled: false` in the ClusterPolicy"
        )
        state = CheckState.FAILED if pool.chosen_by else CheckState.WARNING
        yield DoctorFinding("devices", state, words, remedy)
    elif kubelet is None and pool.chosen_by != "kubelet" and members:
        sure = bool(plugins) and all(each.chosen_by == "scheduler" for each in plugins)
        if sure and not pool.chosen_by:
            words = f"pool {pool.name}: NVIDIA_VISIBLE_DEVICES of a pod chooses its GPUs: {plugins[0].why}"
            remedy = f"write `devicesChosenBy: scheduler` ({pool.where}), so that shares and required links are allowed"
            yield DoctorFinding("devices", CheckState.WARNING, words, remedy)
        elif not sure:
            why = next((f"{each.where}: {each.why}" for each in plugins), "no DaemonSet of the plugin was found")
            words = f"pool {pool.name}: it is not known who chooses the GPUs of pods ({why})"
            remedy = "compare a pod's annotation avactl.dev/devices with `nvidia-smi -L` in it (docs/scheduler.md)"
            yield DoctorFinding("devices", CheckState.UNKNOWN, words, remedy)


def _amounts(node: Mapping[str, object], field: str = "allocatable") -> Mapping[str, object]:
    status = node.get("status")
    found = status.get(field) if isinstance(status, dict) else None
    return found if isinstance(found, dict) else {}


def _amount(node: Mapping[str, object], resource: str, field: str = "allocatable") -> int:
    found = _amounts(node, field)
    try:
        return int(parse_quantity(str(found.get(resource, "0"))))
    except ValueError:
        return 0


def _check_secrets(needs: ProgramNeeds, live: Live) -> Iterator[DoctorFinding]:
    good = 0
    for need in needs.secrets:
        key, who = (need.namespace, need.name), _first_names(need.users)
        where = f"{need.namespace}/{need.name}"
        if key not in live.secrets:
            state = CheckState.WARNING if need.optional else CheckState.FAILED
            words = f"no Secret {where}; {'used' if need.optional else 'needed'} by {who}"
            yield DoctorFinding("secrets", state, words, f"`{need.command()}`")
            continue
        present = live.secrets[key]
        if present is None:
            yield _hidden_finding("secrets", f"Secret {where}")
        elif lacking := need.lacks(present):
            words = f"Secret {where} has no key {lacking}; needed by {who}"
            yield DoctorFinding("secrets", CheckState.FAILED, words, f"create it anew: `{need.command()}`")
        else:
            good += 1
    if good:
        yield DoctorFinding("secrets", CheckState.OK, f"{good} of {len(needs.secrets)} exist with their keys")


def _check_objects(needs: ProgramNeeds, live: Live) -> Iterator[DoctorFinding]:
    good: dict[str, int] = {}
    for need in needs.objects:
        check, who = _RESOURCE_NAMES[need.kind], _first_names(need.users)
        where = f"{need.kind} {need.namespace}/{need.name}"
        present = live.objects.get((need.kind, need.namespace, need.name), _ABSENT)
        if present is _ABSENT:
            state = CheckState.WARNING if need.optional else CheckState.FAILED
            words = f"no {where}; {'used' if need.optional else 'needed'} by {who}"
            yield DoctorFinding(check, state, words, need.remedy())
        elif present is None:
            yield _hidden_finding(check, where)
        elif lacking := need.lacks(present):
            words = f"{where} has no key {lacking}; needed by {who}"
            yield DoctorFinding(check, CheckState.FAILED, words, "add it, or correct the key in the spec")
        else:
            good[need.kind] = good.get(need.kind, 0) + 1
    for kind, count in good.items():
        every = sum(need.kind == kind for need in needs.objects)
        keys = " with their keys" if kind == CONFIG_MAP else ""
        yield DoctorFinding(_RESOURCE_NAMES[kind], CheckState.OK, f"{count} of {every} exist{keys}")


def _check_images(needs: ProgramNeeds) -> Iterator[DoctorFinding]:
    loose = {image for image in needs.images if "@sha256:" not in image}
    for image in sorted(loose)[:_MAX_SHOWN]:
        words = f"{image} of {_first_names(needs.images[image])} has no digest"
        yield DoctorFinding(
            "images", CheckState.WARNING, words, "append `@sha256:…`, so that every pod runs the same image"
        )
    if len(loose) > _MAX_SHOWN:
        yield DoctorFinding("images", CheckState.WARNING, f"{len(loose) - _MAX_SHOWN} more images have no digest")
    if len(loose) < len(needs.images):
        words = f"{len(needs.images) - len(loose)} of {len(needs.images)} are named by digest"
        yield DoctorFinding("images", CheckState.OK, words)


def _check_rights(needs: ProgramNeeds, live: Live) -> Iterator[DoctorFinding]:
    places: dict[tuple[LiveResource, frozenset[str]], set[str]] = {}
    for (resource, namespace), verbs in live.denied.items():
        places.setdefault((resource, frozenset(verbs)), set()).add(namespace)
    alike: dict[tuple[frozenset[str], frozenset[str]], set[str]] = {}
    for (resource, lacking), namespaces in places.items():
        alike.setdefault((lacking, frozenset(namespaces)), set()).add(str(resource))
    for (lacking, where), resources in sorted(alike.items(), key=lambda each: sorted(each[1])):
        inside = f" in {_first_names(where)}" if where != {""} else ""
        words = f"this account may not {_join_verbs(lacking)}{inside}: "
        # Of mode `builtin`, the account in the cluster is not to have these.
        privileged = resources & _PRIVILEGED if needs.applied_by == "builtin" and "get" not in lacking else set()
        if privileged:
            remedy = "an administrator applies them: `avactl reconcile --once`"
            yield DoctorFinding("rights", CheckState.WARNING, words + ", ".join(sorted(privileged)), remedy)
        if others := resources - privileged:
            remedy = "grant it to the account that applies the objects"
            yield DoctorFinding("rights", CheckState.FAILED, words + ", ".join(sorted(others)), remedy)
    wanted = {live.served[kind] for kind in needs.kinds if kind in live.served}
    if allowed := wanted - {resource for resource, _ in places}:
        words = f"this account may apply and prune {len(allowed)} of {len(wanted)} kinds"
        yield DoctorFinding("rights", CheckState.OK, words)


def _join_verbs(verbs: Iterable[str]) -> str:
    *most, last = sorted(verbs)
    return f"{', '.join(most)} or {last}" if most else last


def _hidden_finding(check: str, what: str) -> DoctorFinding:
    return DoctorFinding(
        check, CheckState.UNKNOWN, f"this account may not read {what}", "run doctor with an account that may"
    )
