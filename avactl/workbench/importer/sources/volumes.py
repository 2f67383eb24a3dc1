"""Volumes of pods → `pod.volumes` and `sharedMemory` of a spec."""

from __future__ import annotations

from typing import Any

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.spec.documents.document import Path
from avactl.workbench.importer.model import Body, ImportReader

_VOLUME_SOURCES = ("persistentVolumeClaim", "emptyDir", "secret", "configMap", "projected", "csi", "nfs")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount path in pods
_DROPPED_SOURCES = {
    "hostPath": ("specs of teams mount no directories of machines", "use a claim, an NFS server, or a Dataset"),
    "flexVolume": ("FlexVolume is deprecated", "use the CSI driver of the storage, by a claim"),
}


def convert_volumes(
    reader: ImportReader,
    path: Path,
    spec: Body,
    main: Body,
    index: int,
    compute: Body,
    settings: Body,
    paths: dict[Path, Path],
) -> None:
    """Add the volumes of a pod to `compute` and `settings`. `main` is its container number `index`."""
    mounts: dict[str, list[tuple[int, Body]]] = {}
    for number, mount in enumerate(main.get("volumeMounts") or ()):
        if isinstance(mount, dict):
            mounts.setdefault(str(mount.get("name")), []).append((number, mount))
    made: list[Body] = []
    for number, volume in enumerate(spec.get("volumes") or ()):
        if not isinstance(volume, dict):
            continue
        place = (*path, "volumes", number)
        own = mounts.get(str(volume.get("name")), [])
        for at, _ in own:
            reader.take(*path, "containers", index, "volumeMounts", at)
        if _is_shared_memory(volume, own):
            reader.take(*place)
            paths["workers", "sharedMemory"] = (*place, "emptyDir")
            compute["sharedMemory"] = _shared_memory(reader, place, volume, compute)
            continue
        source = _read_source(reader, place, volume)
        if source is None:
            continue
        several: list[tuple[int, Body] | None] = list(own) or [None]
        for count, entry in enumerate(several):
            name = str(volume.get("name")) if count == 0 else f"{volume.get('name')}-{count + 1}"
            one: Body = {"name": name}
            if entry is not None:
                one |= _read_mount(reader, (*path, "containers", index, "volumeMounts", entry[0]), entry[1])
            paths["pod", "volumes", len(made)] = place
            made.append({**one, **source})
    if made:
        settings["volumes"] = made


def _is_shared_memory(volume: Body, own: list[tuple[int, Body]]) -> bool:
    directory = volume.get("emptyDir")
    memory = isinstance(directory, dict) and directory.get("medium") == "Memory"
    return memory and any(mount.get("mountPath") == _SHARED_MEMORY for _, mount in own)


def _shared_memory(reader: ImportReader, place: Path, volume: Body, compute: Body) -> str:
    limit = volume["emptyDir"].get("sizeLimit")
    if limit is not None:
        return str(limit)
    half = format_quantity(int(parse_quantity(compute.get("memory", "2Gi")) / 2))
    why = f"{_SHARED_MEMORY} has no limit; the spec says half of the memory, {half}"
    reader.lose((*place, "emptyDir"), why, "write what the data loaders need: `sharedMemory`")
    return half


def _read_mount(reader: ImportReader, place: Path, mount: Body) -> Body:
    made = {"mountPath": mount.get("mountPath")}
    for key in ("subPath", "readOnly"):
        if mount.get(key):
            made[key] = mount[key]
    for key in ("subPathExpr", "mountPropagation", "recursiveReadOnly"):
        if mount.get(key) not in (None, "None", "Disabled"):
            reader.lose((*place, key), "volumes of specs have no key for it", "add it by `patches`")
    return made


def _read_source(reader: ImportReader, place: Path, volume: Body) -> Body | None:
    """Return the source of a volume with its key, or None if the spec has no such source."""
    for key in _VOLUME_SOURCES:
        value: Any = volume.get(key)
        if isinstance(value, dict):
            reader.take(*place)
            return {key: value}
    ephemeral = volume.get("ephemeral")
    if isinstance(ephemeral, dict):
        claim = ((ephemeral.get("volumeClaimTemplate") or {}).get("spec")) or {}
        size = ((claim.get("resources") or {}).get("requests") or {}).get("storage")
        if size is not None:
            reader.take(*place)
            scratch = {"size": str(size)}
            if claim.get("storageClassName"):
                scratch["storageClassName"] = claim["storageClassName"]
            return {"scratch": scratch}
    downward = volume.get("downwardAPI")
    if isinstance(downward, dict):
        reader.take(*place)
        source: Body = {"sources": [{"downwardAPI": {"items": downward.get("items") or []}}]}
        return {"projected": source}
    kind = next((key for key in volume if key != "name"), "")
    if not kind:  # the default source
        reader.take(*place)
        return {"emptyDir": {}}
    why, remedy = _DROPPED_SOURCES.get(
        kind, ("specs have no volumes of this type", "use a claim, and create it by the platform")
    )
    reader.lose(place, why, remedy)
    return None
