"""Writes directories as the layers of an OCI image archive, which `ctr images import`, podman and skopeo read.

The same files give the same bytes: entries are sorted, belong to root and have no time. Format:
https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
NAME = "io.containerd.image.name"
"""Annotation of a manifest in `index.json`: the full name under which containerd stores it."""


class Image(NamedTuple):
    """An image in an archive. `digest` is that of its manifest, `sha256:…`."""

    archive: Path
    name: str
    digest: str

    @property
    def reference(self) -> str:
        """The name with the digest, as a pod names it."""
        return f"{self.name}@{self.digest}"


def write_layer(layer: Path, root: Path) -> None:
    """Write the files below `root` as a layer."""
    with tarfile.open(layer, "w") as tar:
        for path in sorted(root.rglob("*")):
            information = tar.gettarinfo(path, str(path.relative_to(root)))
            information.uid = information.gid = 0
            information.uname = information.gname = ""
            information.mtime = 0
            if information.isreg():
                with path.open("rb") as content:
                    tar.addfile(information, content)
            else:
                tar.addfile(information)


def write(archive: Path, layers: Sequence[Path], name: str, config: Mapping[str, Any]) -> None:
    """Write image `name` of these layers, lowest first; `config` is the OCI `config` (Cmd, Env, User, …)."""
    # A layer is not compressed, so both of its digests are one.
    digests = {layer: _file_digest(layer) for layer in layers}
    media = "application/vnd.oci.image"
    image = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": list(digests.values())},
    }
    config_blob = _json(image)
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{media}.manifest.v1+json",
        "config": _descriptor(f"{media}.config.v1+json", _digest(config_blob), len(config_blob)),
        "layers": [
            _descriptor(f"{media}.layer.v1.tar", digest, layer.stat().st_size) for layer, digest in digests.items()
        ],
    }
    manifest_blob = _json(manifest)
    entry = _descriptor(f"{media}.manifest.v1+json", _digest(manifest_blob), len(manifest_blob))
    names = [f"{name}:latest", Image(archive, name, _digest(manifest_blob)).reference]
    index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": {NAME: each}} for each in names]}
    with tarfile.open(archive, "w") as tar:
        # First, so that `read` finds it at once.
        _add(tar, "index.json", _json(index))
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        for blob in (manifest_blob, config_blob):
            _add(tar, _blob(_digest(blob)), blob)
        for layer, digest in digests.items():
            information = tarfile.TarInfo(_blob(digest))
            information.size = layer.stat().st_size
            with layer.open("rb") as content:
                tar.addfile(information, content)


def read(archive: Path) -> Image:
    """Return the image of an archive that `write` wrote."""
    with tarfile.open(archive) as tar:
        index = tar.extractfile("index.json")
        assert index is not None
        entry = json.load(index)["manifests"][0]
    return Image(archive, entry["annotations"][NAME].removesuffix(":latest"), entry["digest"])


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    information = tarfile.TarInfo(name)
    information.size = len(content)
    tar.addfile(information, io.BytesIO(content))


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as content:
        return "sha256:" + hashlib.file_digest(content, "sha256").hexdigest()


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _descriptor(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size}
