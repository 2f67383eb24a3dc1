"""Apply a job without git, as an experiment that expires.

Its leading Job has a deadline and a time to live, and owns all other objects: Kubernetes deletes all of it, whether or
not the machine of the user is there. It has a name of its own and no inventory label, so that no engine that follows
git takes it for one of its objects.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from avactl.contracts import names
from avactl.kube.client import ApiError, Client, UnreachableError
from avactl.program.manifest import Body, Manifest
from avactl.program.workload import FOLLOWERS_LATER
from avactl.spec.documents.edit import set_values
from avactl.workbench.jobs.branch import BranchChange, Job, RunError
from avactl.workbench.jobs.members import is_leading_job

_FIELD_MANAGER = "avactl-run"


class Experiment(NamedTuple):
    """The objects of one job, the leading Job first."""

    namespace: str
    name: str
    objects: list[Body]


class ExperimentRefusedError(Exception):
    """The API server refused an object; nothing is left of the experiment."""

    def __init__(self, title: str, error: ApiError) -> None:
        super().__init__(f"{title} was refused: {error.message}")
        self.forbidden = error.forbidden


def rename_job(change: BranchChange, item: Job) -> tuple[BranchChange, Job]:
    """Return the change with another name of the job, and the job in it. Raises RunError."""
    if not change.path.endswith((".yaml", ".yml")):
        raise RunError(f"{change.path}: only jobs in YAML files can be experiments", "commit it: leave out `--now`")
    if len(change.jobs) > 1:
        raise RunError(f"{change.path} declares several jobs", "give the experiment a file of its own")
    name = f"{item.name}-{secrets.token_hex(2)}"
    edits: list[tuple[str, str | None]] = [("metadata.name", name)]
    if item.resource.metadata.object_name:
        edits.append(("metadata.objectName", None))
    text = set_values(change.path, change.data.decode("utf-8-sig"), item.doc.index, edits)
    made = change.with_data(text.encode())
    if not made.after.ok:
        return made, item
    return made, made.jobs[0]


def make_experiment(change: BranchChange, item: Job, lives: int, stays: int) -> Experiment:
    """Return the objects of a job that expires.

    `lives`: seconds after which it is ended, counted from its creation; `stays`: seconds for which its pods and logs
    remain after the end. Raises RunError.
    """
    if item.spec.schedule is not None:
        raise RunError(f"{item.name} has a schedule: it would never end", "remove `schedule`: `--now` starts it once")
    _want_own_checkpoints(change, item)
    found = [each for each in change.after.manifests if _is_of(each, item)]
    if any(each.kind == "Job" and each.body["spec"].get("suspend") for each in found):  # by a patch, too
        raise RunError(f"{item.name} is suspended: it would never end", "remove `suspended: true`")
    outside = [str(each.id) for each in found if each.namespace != item.ns or each.patch]
    if outside:
        raise RunError(f"{outside[0]} is not in the job's namespace and cannot expire with it", "leave out `--now`")
    # The Team's `allow-experiments` stands for its policies: whoever starts it may not write any.
    objects = [_label_object(each.body, item.name) for each in found if each.kind != "NetworkPolicy"]
    for body in objects:
        if body["kind"] == "Job":
            spec = body["spec"]
            deadline = lives if is_leading_job(body) else lives + FOLLOWERS_LATER
            spec["activeDeadlineSeconds"] = min(deadline, spec.get("activeDeadlineSeconds") or deadline)
            spec["ttlSecondsAfterFinished"] = stays
    objects.sort(key=lambda body: body["kind"] != "Job" or not is_leading_job(body))
    return Experiment(item.ns, item.name, objects)


def _want_own_checkpoints(change: BranchChange, item: Job) -> None:
    """Raise RunError if a job in git saves to the same place: the experiment would overwrite what that one resumes."""
    path = _checkpoint_url(item)
    if not path:
        return
    for other in change.known:
        if (known := _checkpoint_url(other)) and f"{path}/".startswith(f"{known}/"):
            hint = "give it a path of its own, or leave the checkpoint out"
            raise RunError(f"{other.team}/{other.spec_name} saves its checkpoints in {known}", hint)


def _checkpoint_url(item: Job) -> str:
    checkpoint = item.spec.checkpoint
    return checkpoint.directory if checkpoint is not None else ""


def _is_of(manifest: Manifest, item: Job) -> bool:
    return manifest.item is item and manifest.cluster == item.cluster


def _label_object(body: Body, name: str) -> Body:
    made = deepcopy(body)
    for part in (made, *([made["spec"]["template"]] if made["kind"] in ("Job", "Deployment") else ())):
        labels = part["metadata"].setdefault("labels", {})
        labels[names.EXPERIMENT] = name
    return made


async def start(client: Client, wanted: Experiment) -> None:
    """Create the objects, after the API server has accepted all of them in a dry run.

    Raises RefusedError and UnreachableError.
    """
    for body in wanted.objects:
        await _create(client, collection_path(body), body, {"dryRun": "All"})
    leader, *others = wanted.objects
    # The leading Job is first: if this process dies here, what is there is deleted with it.
    created = await _create(client, collection_path(leader), leader, {})
    owner = {
        "apiVersion": leader["apiVersion"],
        "kind": leader["kind"],
        "name": created["metadata"]["name"],
        "uid": created["metadata"]["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }
    try:
        for body in others:
            owned = {**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}}
            await _create(client, collection_path(body), owned, {})
    except (ExperimentRefusedError, UnreachableError):
        with contextlib.suppress(ApiError, UnreachableError):  # it expires by itself, too
            name = created["metadata"]["name"]
            await client.request("DELETE", f"{collection_path(leader)}/{name}", {"propagationPolicy": "Background"})
        raise


async def _create(client: Client, path: str, body: Body, query: Mapping[str, str]) -> dict[str, Any]:
    about = {"fieldManager": _FIELD_MANAGER, "fieldValidation": "Strict", **query}
    try:
        created: dict[str, Any] = await client.request("POST", path, body, query=about)
    except ApiError as error:
        raise ExperimentRefusedError(f"{body['kind']} {body['metadata']['name']}", error) from None
    return created


def collection_path(body: Body) -> str:
    """Return the URL path of the collection of an object."""
    api, kind = body["apiVersion"], body["kind"].lower()
    root = f"/apis/{api}" if "/" in api else f"/api/{api}"
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"{root}/namespaces/{body['metadata']['namespace']}/{plural}"
