"""Image archives are complete by the digests in them, and the same for the same files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

from tools.image import oci

CONFIG = {"Cmd": ["sh"], "User": "1000"}


def tree(root: Path, text: str = "content") -> Path:
    """A root directory with files, a program, and both kinds of links."""
    (root / "usr/bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    program = root / "usr/bin/program"
    program.write_text(text)
    program.chmod(0o755)
    os.link(program, root / "usr/bin/zlink")
    return root


def image(folder: Path, *roots: Path) -> oci.Image:
    folder.mkdir()
    layers = [folder / f"{number}.layer" for number in range(len(roots))]
    for layer, root in zip(layers, roots, strict=True):
        oci.write_layer(layer, root)
    oci.write(folder / "image.tar", layers, "localhost/test", CONFIG)
    return oci.read(folder / "image.tar")


def test_every_blob_has_its_digest(tmp_path: Path) -> None:
    made = image(tmp_path / "made", tree(tmp_path / "base"), tree(tmp_path / "top", "more"))
    with tarfile.open(made.archive) as tar:
        blobs = {member.name: read(tar, member) for member in tar if member.name.startswith("blobs/")}
        index = json.loads(read(tar, tar.getmember("index.json")))
    assert all(name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}" for name, content in blobs.items())
    assert [entry["annotations"][oci.NAME] for entry in index["manifests"]] == [
        "localhost/test:latest",
        f"localhost/test@{made.digest}",
    ]
    manifest = json.loads(blob(blobs, made.digest))
    config = json.loads(blob(blobs, manifest["config"]["digest"]))
    assert config["config"] == CONFIG
    layers = manifest["layers"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in layers]
    assert [layer["size"] for layer in layers] == [len(blob(blobs, layer["digest"])) for layer in layers]
    with tarfile.open(fileobj=io.BytesIO(blob(blobs, layers[1]["digest"]))) as layer:
        members = {member.name: member for member in layer}
        assert list(members) == ["bin", "usr", "usr/bin", "usr/bin/program", "usr/bin/zlink"]
        assert read(layer, members["usr/bin/program"]) == b"more"
        assert members["usr/bin/program"].mode == 0o755
        assert (members["bin"].issym(), members["bin"].linkname) == (True, "usr/bin")
        assert members["usr/bin/zlink"].islnk()
        assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 0)}


def test_same_files_make_the_same_image(tmp_path: Path) -> None:
    first = image(tmp_path / "first", tree(tmp_path / "one"))
    os.utime(tree(tmp_path / "two") / "usr/bin/program", (1, 1))
    second = image(tmp_path / "second", tmp_path / "two")
    assert second.digest == first.digest
    assert second.archive.read_bytes() == first.archive.read_bytes()
    assert image(tmp_path / "third", tree(tmp_path / "three", "other")).digest != first.digest


def read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = tar.extractfile(member)
    assert content is not None
    return content.read()


def blob(blobs: dict[str, bytes], digest: Any) -> bytes:
    return blobs[f"blobs/{digest.replace(':', '/')}"]
