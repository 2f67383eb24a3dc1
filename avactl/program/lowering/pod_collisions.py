"""Names and mount paths of pod settings, compared with those of the compiled pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from avactl.diagnostics import Diagnostic, Span
from avactl.diagnostics.suggest import did_you_mean
from avactl.program.manifest import Body
from avactl.program.program import Item
from avactl.program.refused import RefusedError
from avactl.spec.schema.pod_settings import Container, PodSettings

Path = tuple[str | int, ...]
OWN_CONTAINERS = ("follower", "partner", "publisher", "health-check", "worker-library")
"""Containers that the compiler adds to some pods later."""
OWN_VOLUMES = ("token", "worker-library")
"""Volumes that the compiler adds to some pods later: credentials of avactl's accounts, and the workers' library."""
SYSTEM_DIRECTORIES = frozenset(
    (
        "/",
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/lib",
        "/lib64",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/sys",
        "/usr",
        "/var",
        "/var/run",
    )
)
"""Directories that every image needs."""
_RESERVED_DIRECTORIES = (
    "/dev",
    "/proc",
    "/sys",
    "/etc/avactl",
    "/run/avactl",
    "/run/secrets",
    "/var/run/avactl",
    "/var/run/secrets",
)
"""Directories of the kernel, of avactl, and of service accounts; nothing below them may be mounted."""


def refuse_collisions(item: Item, paths: Sequence[Path], pod: Body, settings: PodSettings) -> None:
    """Raise RefusedError for settings that take a name or a directory of the pod. `paths`: where settings may stand."""
    problems = [
        *_check_names(item, paths, pod, settings),
        *_check_mounts(item, paths, pod, settings),
        *_check_ports(item, paths, pod, settings),
    ]
    if problems:
        raise RefusedError(problems)


def _entry_span(item: Item, paths: Sequence[Path], key: str, name: str, *more: str | int) -> Span:
    for path in reversed(paths):
        for index, entry in enumerate(item.doc.get(*path, key) or ()):
            if isinstance(entry, dict) and entry.get("name") == name:
                return item.span(*path, key, index, *more)
    return item.span(*paths[0])


def _check_names(item: Item, paths: Sequence[Path], pod: Body, settings: PodSettings) -> Iterator[Diagnostic]:
    taken = {each["name"] for each in pod.get("volumes", ())} | {*OWN_VOLUMES}
    for volume in settings.volumes:
        if volume.name in taken:
            yield Diagnostic(
                "duplicate-entry",
                f"the pods already have a volume `{volume.name}`, which is avactl's",
                _entry_span(item, paths, "volumes", volume.name, "name"),
                hint=f"choose another name, such as `my-{volume.name}`",
            )
    taken = {each["name"] for each in (*pod["containers"], *pod.get("initContainers", ()))} | {*OWN_CONTAINERS}
    for key, containers in (("sidecars", settings.sidecars), ("initContainers", settings.init_containers)):
        for container in containers:
            if container.name in taken:
                yield Diagnostic(
                    "duplicate-entry",
                    f"the pods already have a container `{container.name}`",
                    _entry_span(item, paths, key, container.name, "name"),
                    hint="choose another name",
                )
            taken.add(container.name)


def _check_ports(item: Item, paths: Sequence[Path], pod: Body, settings: PodSettings) -> Iterator[Diagnostic]:
    """Yield ports on which two containers of a pod listen at the same time: the second one could not start."""
    taken = {
        (port["containerPort"], port.get("protocol", "TCP")): each["name"]
        for each in pod["containers"]
        for port in each.get("ports", ())
    }
    for container in settings.sidecars:
        for index, port in enumerate(container.ports):
            other = taken.setdefault((port.container_port, port.protocol), container.name)
            if other != container.name:
                yield Diagnostic(
                    "duplicate-entry",
                    f"container `{other}` of the pods listens on port {port.container_port} already: containers of a "
                    "pod share its network",
                    _entry_span(item, paths, "sidecars", container.name, "ports", index, "containerPort"),
                    hint="let one of them listen on another port",
                )


def _check_mounts(item: Item, paths: Sequence[Path], pod: Body, settings: PodSettings) -> Iterator[Diagnostic]:
    main = pod["containers"][0]
    taken = {
        each["mountPath"].rstrip("/"): (each["name"], each.get("readOnly", False))
        for each in main.get("volumeMounts", ())
    }
    for volume in settings.volumes:
        if volume.mount_path is not None:
            span = _entry_span(item, paths, "volumes", volume.name, "mountPath")
            yield from _check_mount(volume.mount_path, volume.name, volume.read_only, taken, span)
    known = [*(each["name"] for each in pod.get("volumes", ())), *(each.name for each in settings.volumes)]
    for key, containers in (("sidecars", settings.sidecars), ("initContainers", settings.init_containers)):
        for container in containers:
            yield from _of_container(item, paths, key, container, known)


def _of_container(
    item: Item, paths: Sequence[Path], key: str, container: Container, known: list[str]
) -> Iterator[Diagnostic]:
    taken: dict[str, tuple[str, bool]] = {}
    for index, mount in enumerate(container.volume_mounts):
        path: tuple[str | int, ...] = ("volumeMounts", index)
        if mount.name not in known:
            yield Diagnostic(
                "missing-reference",
                f"the pods have no volume `{mount.name}`",
                _entry_span(item, paths, key, container.name, *path, "name"),
                hint=did_you_mean(mount.name, known, "volumes of the pods"),
            )
        span = _entry_span(item, paths, key, container.name, *path, "mountPath")
        yield from _check_mount(mount.mount_path, mount.name, mount.read_only, taken, span)


def hides_system_files(directory: str) -> bool:
    """Return True if a mount would hide files of the image, the kernel, avactl or service accounts."""
    directory = directory.rstrip("/") or "/"
    inside = directory != "/dev/shm" and any(f"{directory}/".startswith(f"{own}/") for own in _RESERVED_DIRECTORIES)  # noqa: S108
    return directory in SYSTEM_DIRECTORIES or inside


def _check_mount(
    path: str, name: str, read_only: bool, taken: dict[str, tuple[str, bool]], span: Span
) -> Iterator[Diagnostic]:
    directory = path.rstrip("/") or "/"
    other = next(((at, *what) for at, what in taken.items() if _mounts_clash(directory, read_only, at, what[1])), None)
    if hides_system_files(directory):
        message = f"volume {name} at `{path}` would hide files of the image, the system or avactl"
        yield Diagnostic("mount-conflict", message, span, hint="use a directory of its own, such as `/scratch`")
    elif other is not None:
        message = f"volume {name} at `{path}` conflicts with volume {other[1]}, which is mounted at `{other[0]}`"
        yield Diagnostic("mount-conflict", message, span, hint="mount it in another directory")
    taken[directory] = (name, read_only)


def _mounts_clash(one: str, one_read_only: bool, other: str, other_read_only: bool) -> bool:
    """Return True if two mounts have the same directory, or one is inside of a read-only one."""
    if one == other:
        return True
    inside = one.startswith(f"{other}/") and other_read_only
    return inside or (other.startswith(f"{one}/") and one_read_only)
