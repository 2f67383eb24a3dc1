"""Code from a workspace: a copy of a directory of its home, made when the job starts.

The first pod of a Job that starts writes an archive into the home, named by its digest, and a reference to it, named by
the Job. All pods of the Job, also those that start again days later, unpack that archive after they have compared its
digest. So later edits in the workspace do not reach a job that runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from avactl.base.variable_references import escape_references
from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.training.addressing import field_variable
from avactl.kinds.training.roles import MASTER, job_parts
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.program import registry
from avactl.program.images import require_image
from avactl.program.lowering import pods
from avactl.program.program import Item, Program
from avactl.program.workload import Home, Lifecycle
from avactl.spec.schema.compute import WorkspaceCode

_HOME_DIRECTORY = "/workspace/home"
"""Mount path of the home in the init container."""
SNAPSHOTS = ".avactl/code"
"""Directory of the archives below the home."""
_OF_JOB = {"JOB_NAME": "batch.kubernetes.io/job-name", "JOB_UID": "batch.kubernetes.io/controller-uid"}
"""Labels of pods by variable."""

SNAPSHOT_SCRIPT = f"""\
set -eu
store="$WORKSPACE_HOME/{SNAPSHOTS}"
reference="$store/$JOB_NAME.$JOB_UID"
mkdir -p "$store"
next=$(mktemp -d "$store/.next.XXXXXX")
trap 'rm -rf "$next"' EXIT
digest_of() {{ sha256sum < "$1" | cut -d ' ' -f 1; }}
if [ ! -f "$reference" ]; then
  if [ ! -d "$WORKSPACE_HOME/$SOURCE" ]; then
    echo "error: workspace $WORKSPACE has no directory $SOURCE" >&2
    exit {pods.MISSING_REVISION}
  fi
  cd "$WORKSPACE_HOME/$SOURCE"
  # Without `.` itself: the root of the volume that it is unpacked into belongs to root.
  for name in * .[!.]* ..?*; do
    if [ "$name" != .avactl ] && {{ [ -e "$name" ] || [ -L "$name" ]; }}; then set -- "$@" "./$name"; fi
  done
  if [ $# = 0 ]; then
    echo "error: directory $SOURCE of workspace $WORKSPACE is empty" >&2
    exit {pods.MISSING_REVISION}
  fi
  tries=5
  # A file may change while it is read.
  until tar -cf "$next/code.tar" "$@"; do
    tries=$((tries - 1))
    if [ $tries = 0 ]; then exit 1; fi
    sleep 1
  done
  digest=$(digest_of "$next/code.tar")
  mv -f "$next/code.tar" "$store/$digest.tar"
  echo "$digest" > "$next/reference"
  # Of pods that start together, the first one decides: a link never replaces a file.
  ln "$next/reference" "$reference" 2>/dev/null || [ -f "$reference" ]
fi
digest=$(cat "$reference")
if [ "$(digest_of "$store/$digest.tar")" != "$digest" ]; then
  echo "error: $store/$digest.tar is damaged" >&2
  exit 1
fi
tar -C "$TARGET" -xf "$store/$digest.tar"
echo "code: sha256:$digest of workspace $WORKSPACE, directory $SOURCE"
# Archives of this job's earlier runs, if no reference has named them for a day. Other pods write and clean meanwhile.
clean() {{
  find "$store" -maxdepth 1 -name "$JOB_NAME.*" ! -name "$JOB_NAME.$JOB_UID" -mtime +0 -exec rm -f {{}} +
  find "$store" -maxdepth 1 -name '.next.*' -mtime +0 -exec rm -rf {{}} +
  # Many references are more than one command line takes, and without all of them nothing is removed.
  find "$store" -maxdepth 1 -type f -name '*.*-*-*-*-*' -exec cat {{}} + > "$next/known" || return
  find "$store" -maxdepth 1 -name '*.tar' -mtime +0 | while read -r archive; do
    name=${{archive##*/}}
    # Another pod may have made the same archive again since.
    grep -qxF "${{name%.tar}}" "$next/known" || find "$archive" -maxdepth 0 -mtime +0 -exec rm -f {{}} +
  done
}}
clean || true
"""
"""Copies a directory of the workspace into TARGET. Safe to rerun in a volume that it has filled."""


def find_home(program: Program, item: Item, name: str) -> tuple[Item, Home] | None:
    """Return the team's session of that name, and its home; None if there is none."""
    for kind in registry.workload_kinds(Lifecycle.SESSION):
        found = program.find(kind, name, item.team)
        hooks = registry.get_kind(kind).workload
        if found is not None and hooks is not None and hooks.home is not None:
            return found, hooks.home(found)
    return None


def mount_code(volumes: pods.PodVolumes, code: WorkspaceCode) -> None:
    """Add the copy of the code, the init container that makes it, and the home if the job shall see it."""
    found = find_home(volumes.program, volumes.item, code.name)
    if found is None:
        raise LookupError(f"no workspace {code.name}")
    claim = found[1].claim
    volumes.volumes.append({"name": "code", "emptyDir": {}})
    volumes.mounts.append({"name": "code", "mountPath": code.mount, "readOnly": True})
    volumes.volumes.append({"name": "workspace", "persistentVolumeClaim": {"claimName": claim}})
    if code.home is not None:
        volumes.mounts.append({"name": "workspace", "mountPath": code.home, "readOnly": True})
    env = {
        "WORKSPACE": code.name,
        "WORKSPACE_HOME": _HOME_DIRECTORY,
        "SOURCE": escape_references(code.path),
        "TARGET": code.mount,
    }
    mounts = [{"name": "workspace", "mountPath": _HOME_DIRECTORY}, {"name": "code", "mountPath": code.mount}]
    labels = [field_variable(name, f"metadata.labels['{label}']") for name, label in _OF_JOB.items()]
    image = volumes.program.cluster_spec(volumes.item.cluster).images.git
    resources = pods.build_resources("100m", "256Mi")
    volumes.init.append(
        pods.build_helper(pods.CODE, image, SNAPSHOT_SCRIPT, [*pods.env_list(env), *labels], resources, mounts)
    )


def code_problems(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield problems of the source of a job's code."""
    code = item.spec.code
    if code is None:
        return
    where = ("spec", "code")
    if code.git is not None and code.workspace is not None:
        yield Diagnostic(
            "conflicting-keys",
            "`git` and `workspace` exclude each other",
            item.span(*where, "workspace", key=True),
            hint="keep one of them",
            notes=(Note(item.span(*where, "git", key=True), "`git`"),),
        )
    elif code.git is None and code.workspace is None:
        yield Diagnostic(
            "missing-key",
            "`spec.code` needs `git` or `workspace`",
            item.span(*where, key=True),
            hint="add `git: {url: …, ref: COMMIT}`, or `workspace: {name: …, path: …}`",
        )
    else:
        yield from require_image(item, program, "git", where)
    if code.workspace is not None:
        yield from _check_workspace(item, program, code.workspace)


def _check_workspace(item: Item[TrainingJobSpec], program: Program, code: WorkspaceCode) -> Iterator[Diagnostic]:
    path = ("spec", "code", "workspace")
    found = find_home(program, item, code.name)
    if found is None:
        sessions = registry.workload_kinds(Lifecycle.SESSION)
        known = (program.names(kind, item.team) for kind in sessions)
        near = next(filter(None, (names.closest(code.name) for names in known)), None)
        yield Diagnostic(
            "missing-reference",
            f"team {item.team} has no workspace `{code.name}`",
            item.span(*path, "name"),
            hint=f"did you mean `{near}`?" if near else "name a workspace of the team",
        )
        return
    workspace, home = found
    if (workspace.cluster, workspace.ns) != (item.cluster, item.ns):
        yield Diagnostic(
            "other-cluster",
            f"{workspace} is in namespace {workspace.ns} of cluster {workspace.cluster}; "
            f"{item} runs in {item.ns} of {item.cluster}",
            item.span(*path, "name"),
            hint="push the code, and write `git: {url: …, ref: COMMIT}`",
        )
        return
    user, group = item.spec.run_as_user, item.spec.run_as_group or item.spec.run_as_user
    if (user, group) != (home.user, home.group):
        yield Diagnostic(
            "invalid-value",
            f"spec.runAsUser: the job runs as user {user} and group {group}, but the files of {workspace} belong to "
            f"user {home.user} and group {home.group}",
            item.span(*path, "name"),
            hint=f"write `runAsUser: {home.user}`"
            + (f" and `runAsGroup: {home.group}`" if home.group != home.user else ""),
        )
    pods_of_job = sum(part.replicas for part in job_parts(item.spec) if part.role != MASTER)
    if not home.shared:
        several = pods_of_job > 1
        yield Diagnostic(
            "access-mode",
            f"{pods_of_job} pods take code from the home of {workspace}, which one node mounts"
            if several
            else f"the home of {workspace} is mounted by one node: the job waits if it is placed on another one",
            item.span(*path, "name"),
            severity="error" if several else "warning",
            hint=f"write `sharedHome: true` in {workspace} when it is created, or use `git`"
            + ("" if several else "; or stop the workspace"),
            notes=(Note(workspace.span("metadata", "name"), "the workspace"),),
        )
