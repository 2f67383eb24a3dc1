"""Built-in policies, enabled by name in avactl.yaml."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from avactl.policy import Problem, problem
from avactl.policy.settings import LongJobs, Ready, RuleSetting
from avactl.program import registry
from avactl.program.manifest import Manifest
from avactl.program.program import Item
from avactl.program.workload import Lifecycle, WorkloadHooks
from avactl.spec.documents.document import Path, nested_strings
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import duration_seconds

OverSpec = Callable[[Item, Any], Iterator[Problem]]
OverManifest = Callable[[Manifest, Any], Iterator[Problem]]


class Active(NamedTuple):
    """An enabled policy."""

    name: str
    rule: RuleSetting
    over_spec: OverSpec | None
    over_manifest: OverManifest | None


def active_policies(ready: Ready) -> list[Active]:
    """Return the enabled policies with their settings."""
    found = []
    for field, info in type(ready).model_fields.items():
        switch = getattr(ready, field)
        if switch is not None:
            name = info.alias or field
            make = LongJobs if name == "checkpoints" else RuleSetting
            rule = switch if isinstance(switch, RuleSetting) else make(severity=switch)
            found.append(Active(name, rule, _OVER_SPECS.get(name), _OVER_MANIFESTS.get(name)))
    return found


# -- specs -----------------------------------------------------------------------------------------------------------


def _spec_images(item: Item) -> Iterator[tuple[Path, str]]:
    """Yield the images in a spec."""
    for path, text, is_key in nested_strings(item.doc.value):
        if not is_key and path[:1] == ("spec",) and (path[-1] == "image" or path[-2:-1] == ("images",)):
            yield path, text


def _later_images(manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """Yield the images that patches and files of manifests bring into an object, beyond those in the spec."""
    from_files = bool(getattr(manifest.item.spec, "files", ()))
    if not from_files and not manifest.patched:
        return
    given = {image for _, image in _spec_images(manifest.item)}
    for pod, path in nested_pods(manifest.body):
        for container, inside in _pod_containers(pod, path):
            named = (*inside[:-1], str(container.get("name")), "image")
            brought = from_files or any(named[: len(each.path)] == each.path for each in manifest.patched)
            image = container.get("image")
            if brought and isinstance(image, str) and image not in given:
                yield (*inside, "image"), image


def _unpinned_problems(images: Iterator[tuple[Path, str]]) -> Iterator[Problem]:
    for path, image in images:
        if "@" not in image:
            help = "write `NAME@sha256:…`: `crane digest` prints it, or `docker buildx imagetools inspect`"
            yield problem(f"image `{image}` is not pinned by digest: tags are mutable", *path, help=help)


def _unversioned_problems(images: Iterator[tuple[Path, str]]) -> Iterator[Problem]:
    for path, image in images:
        name, digest, _ = image.partition("@")
        tag = name.rpartition("/")[2].partition(":")[2]
        if not digest and tag in ("", "latest"):
            what = "has no tag and defaults to `latest`" if not tag else "has the mutable tag `latest`"
            yield problem(f"image `{image}` {what}", *path, help="use a version tag or a digest")


def _images_pinned(item: Item, rule: RuleSetting) -> Iterator[Problem]:
    yield from _unpinned_problems(_spec_images(item))


def _versions_fixed(item: Item, rule: RuleSetting) -> Iterator[Problem]:
    yield from _unversioned_problems(_spec_images(item))
    workload = registry.get_kind(item.kind).workload
    for version in workload.unpinned(item) if workload is not None else ():
        yield problem(version.message, *version.path, help=version.remedy)


def _of_lifecycle(item: Item, lifecycle: Lifecycle) -> WorkloadHooks[Any] | None:
    """Return the workload hooks of a spec if its kind has this lifecycle."""
    return registry.get_kind(item.kind).workload if registry.get_lifecycle(item.kind) is lifecycle else None


def _checkpoint_problems(item: Item, rule: LongJobs) -> Iterator[Problem]:
    workload = _of_lifecycle(item, Lifecycle.JOB)
    if workload is None or workload.has_checkpoint is None or workload.has_checkpoint(item):
        return
    declared = list(workload.roles(item))
    gpus = sum(role.compute.gpus * role.most for role in declared)
    timeout = workload.timeout(item) if workload.timeout is not None else None
    hours = None if timeout is None else float(duration_seconds(timeout)) / 3600
    if not gpus or (hours is not None and gpus * hours <= rule.gpu_hours):
        return
    count = f"{gpus:g} GPU{'' if gpus == 1 else 's'}"
    if hours is None:
        text = f"{count} without a timeout and without a checkpoint"
    else:
        text = f"{count} for {timeout}: {gpus * hours:g} GPU-hours without a checkpoint"
    help = f"add `checkpoint: {{path: …}}`; or a `timeout` of at most {rule.gpu_hours} GPU-hours"
    yield problem(text, *declared[0].path, help=help)


def _jobs_end(item: Item, rule: RuleSetting) -> Iterator[Problem]:
    workload = _of_lifecycle(item, Lifecycle.JOB)
    if workload is not None and workload.timeout is not None and workload.timeout(item) is None:
        yield problem("the job has no `timeout`: if it hangs, it keeps its GPUs", "spec", help="add `timeout: 2d`")


def _services_redundant(item: Item, rule: RuleSetting) -> Iterator[Problem]:
    workload = _of_lifecycle(item, Lifecycle.SERVICE)
    for role in workload.roles(item) if workload is not None else ():
        if role.least < 2:
            fewest = "a single pod" if role.least else "no pods or a single one"
            text = f"the service can run with {fewest} and is unavailable if that pod's machine fails"
            yield problem(
                text, *(role.replicas_path or role.path), help="write `replicas: 2` or `replicas: {min: 2, …}`"
            )


def _egress_closed(item: Item, rule: RuleSetting) -> Iterator[Problem]:
    spec = item.spec
    for index, network in enumerate(getattr(spec, "egress_allowed", ())):
        if network.endswith("/0"):
            given = isinstance(spec, Model) and "egress_allowed" in spec.model_fields_set
            path: Path = ("spec", "egressAllowed", index) if given else ("spec",)
            said = "" if given else " (the default)"
            help = "list the required networks: `egressAllowed: [10.0.0.0/8]`"
            yield problem(f"`egressAllowed: {network}`{said} lets team pods reach every address", *path, help=help)


# -- objects ---------------------------------------------------------------------------------------------------------


_POD_SPECS: tuple[Path, ...] = (
    ("spec",),
    ("spec", "template", "spec"),
    ("spec", "jobTemplate", "spec", "template", "spec"),
    ("spec", "leaderWorkerTemplate", "leaderTemplate", "spec"),
    ("spec", "leaderWorkerTemplate", "workerTemplate", "spec"),
)


def nested_pods(body: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the pod specs in an object, and their paths."""
    for path in _POD_SPECS:
        found: Any = body
        for step in path:
            found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, dict) and isinstance(found.get("containers"), list):
            yield found, path
    spec = body.get("spec")
    roles = spec.get("roles") if isinstance(spec, dict) else None
    for index, role in enumerate(roles if isinstance(roles, list) else ()):
        if isinstance(role, dict):  # of a DisaggregatedSet, each with the spec of a LeaderWorkerSet
            yield from (
                (found, ("spec", "roles", index, *path)) for found, path in nested_pods({"spec": role.get("spec")})
            )


def _pod_containers(pod: dict[str, Any], path: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    for key in ("initContainers", "containers"):
        for index, container in enumerate(pod.get(key) or ()):
            if isinstance(container, dict):  # custom resources may have other things of that name
                yield container, (*path, key, index)


def _no_privileged(manifest: Manifest, rule: RuleSetting) -> Iterator[Problem]:
    for pod, path in nested_pods(manifest.body):
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.get(key):
                yield problem(f"pods have `{key}: true`", *path, key)
        for index, volume in enumerate(pod.get("volumes") or ()):
            if isinstance(volume, dict) and volume.get("hostPath"):
                where = volume["hostPath"].get("path")
                yield problem(f"pods mount the host directory `{where}`", *path, "volumes", index, "hostPath", "path")
        for container, inside in _pod_containers(pod, path):
            security = container.get("securityContext") or {}
            for key in ("privileged", "allowPrivilegeEscalation"):
                if security.get(key):
                    text = f"container {container['name']} has `{key}: true`"
                    yield problem(text, *inside, "securityContext", key)
            added = (security.get("capabilities") or {}).get("add") or ()
            if added:
                text = f"container {container['name']} adds the capabilities {', '.join(map(str, added))}"
                yield problem(text, *inside, "securityContext", "capabilities", "add")


_OVER_SPECS: dict[str, OverSpec] = {
    "images-pinned": _images_pinned,
    "versions-fixed": _versions_fixed,
    "checkpoints": _checkpoint_problems,
    "jobs-end": _jobs_end,
    "services-redundant": _services_redundant,
    "egress-closed": _egress_closed,
}
_OVER_MANIFESTS: dict[str, OverManifest] = {
    "images-pinned": lambda manifest, _: _unpinned_problems(_later_images(manifest)),
    "versions-fixed": lambda manifest, _: _unversioned_problems(_later_images(manifest)),
    "no-privileged": _no_privileged,
}
HELP = {
    "no-privileged": "remove the setting, or list the spec under `exempt` of the policy in avactl.yaml",
}
"""Remedies for policies whose problems do not include one."""
