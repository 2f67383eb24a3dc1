"""Mount points of a job's pods, and conflicts between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.training import followers, mpi
from avactl.kinds.training.pod import CHECKPOINTS, log_path
from avactl.kinds.training.roles import declared_roles
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.program import dataset_access
from avactl.program.lowering import pods
from avactl.program.lowering.pod_collisions import SYSTEM_DIRECTORIES
from avactl.program.program import Item, Program

Path = tuple[str | int, ...]


class MountPoint(NamedTuple):
    """A mount point."""

    directory: str
    what: str
    path: Path
    """Path of the setting, or of the setting that requires it."""
    read_only: bool
    dataset: bool = False


def _mount_places(item: Item[TrainingJobSpec], program: Program) -> Iterator[MountPoint]:
    spec = item.spec
    for index, mount in enumerate(spec.datasets):
        place: Path = ("spec", "datasets", index, "mount")
        given = place if "mount" in mount.model_fields_set else place[:-1]
        yield MountPoint(mount.mount, f"dataset {mount.name}", given, True, dataset=True)
    if spec.code is not None:
        key = "git" if spec.code.git is not None else "workspace"
        source = getattr(spec.code, key)
        place = ("spec", "code", key, "mount") if "mount" in source.model_fields_set else ("spec", "code", key)
        yield MountPoint(source.mount, "the code", place, key == "workspace")
        if key == "workspace" and source.home is not None:
            yield MountPoint(source.home, f"the home of workspace {source.name}", ("spec", "code", key, "home"), True)
    if spec.checkpoint is not None and spec.checkpoint.volume is not None:
        yield MountPoint(CHECKPOINTS, "the checkpoint volume", ("spec", "checkpoint", "volume"), False)
    logs = log_path(spec)
    if logs is not None:
        place = ("spec", "logVolume") if spec.log_volume is not None else ("spec", "tensorboard", "logdir")
        yield MountPoint(logs, "the log volume", place, False)
    for bucket in dataset_access.mounted_buckets(program, item):
        yield MountPoint(f"/buckets/{bucket.name}", f"bucket {bucket.name}", ("spec",), True)
    if "HOME" not in spec.env:
        yield MountPoint(pods.HOME, "the home directory", ("spec",), False)
    for path, role in declared_roles(spec):
        if role.shared_memory is not None:
            yield MountPoint("/dev/shm", "shared memory", (*path, "sharedMemory"), False)  # noqa: S108
            break
    if spec.strategy == "mpi":
        yield MountPoint(mpi.CONFIG, "the files of MPI", ("spec", "strategy"), True)
        yield MountPoint(followers.DIRECTORY, "the commands of MPI", ("spec", "strategy"), False)


def place_problems(item: Item[TrainingJobSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield mount points used twice, nested in something read-only, or needed by the image.

    Conflicts between two datasets are reported by `dataset_access.mount_problems`.
    """
    places = [place._replace(directory=place.directory.rstrip("/") or "/") for place in _mount_places(item, program)]
    logdir = item.spec.tensorboard.logdir if item.spec.tensorboard else "/logs"
    if "://" not in logdir and not logdir.startswith("/"):
        yield Diagnostic(
            "invalid-value",
            f"spec.tensorboard.logdir: `{logdir}` is neither an absolute path nor an object-store URL",
            item.span("spec", "tensorboard", "logdir"),
            hint=f"write `/{logdir.removeprefix('./')}`, or `s3://BUCKET/{logdir.removeprefix('./')}`",
        )
        return
    for index, place in enumerate(places):
        if place.directory in SYSTEM_DIRECTORIES:
            if place.directory == "/" and place.dataset:
                continue
            hint = "use a separate directory, such as `/data`"
            message = f"{place.what} at `{place.directory}` would hide the image's own files"
            yield Diagnostic("mount-conflict", message, item.span(*place.path), hint=hint)
            continue
        for other in places[:index]:
            if place.dataset and other.dataset:
                continue
            problem = _clash_problem(item, place, other)
            if problem is not None:
                yield problem
                break


def _clash_problem(item: Item[TrainingJobSpec], place: MountPoint, other: MountPoint) -> Diagnostic | None:
    """Return the conflict between two mount points, or None."""
    if place.directory == other.directory:
        message = f"{place.what} and {other.what} are both mounted at `{place.directory}`"
        inner, outer = place, other
    elif other.read_only and place.directory.startswith(f"{other.directory}/"):
        inner, outer = place, other
        message = f"{inner.what} at `{inner.directory}` is inside `{outer.directory}`, read-only mount of {outer.what}"
    elif place.read_only and other.directory.startswith(f"{place.directory}/"):
        inner, outer = other, place
        message = f"{inner.what} at `{inner.directory}` is inside `{outer.directory}`, read-only mount of {outer.what}"
    else:
        return None
    # Point the caret at the directory that the user chose.
    movable, fixed = (inner, outer) if inner.path[-1] in ("mount", "home", "logdir", "logVolume") else (outer, inner)
    return Diagnostic(
        "mount-conflict",
        message,
        item.span(*movable.path),
        hint=f"mount {movable.what} in another directory",
        notes=(Note(item.span(*fixed.path), fixed.what),) if fixed.path != ("spec",) else (),
    )
