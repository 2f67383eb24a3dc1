"""A FUSE file system that one pod mounts on its node, and others read: the shape of cache tiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.pods import Cluster, sh
from tools.waiting import wait_until

pytestmark = pytest.mark.e2e

SERVER = """
import errno, os, stat, sys
from fusepy import FUSE, FuseOSError, Operations

TEXT = os.environ["TEXT"].encode()

class Files(Operations):
    def getattr(self, path, handle=None):
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path != "/file":
            raise FuseOSError(errno.ENOENT)
        return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": len(TEXT)}

    def readdir(self, path, handle):
        return [".", "..", "file"]

    def read(self, path, size, offset, handle):
        return TEXT[offset : offset + size]

FUSE(Files(), "/mounts/tier", foreground=True, allow_other=True)
"""
PREPARE = "umount -l /mounts/tier 2>/dev/null || true; mkdir -p /mounts/tier"


def serve(cluster: Cluster, name: str, image: str, text: str, directory: str) -> None:
    """Mount a file system with one file on the node, and wait until it is mounted."""
    env = [
        {"name": "FUSE_LIBRARY_PATH", "value": "/usr/lib/x86_64-linux-gnu/libfuse.so.2"},
        {"name": "TEXT", "value": text},
        {"name": "SERVER", "value": SERVER},
    ]
    cluster.create(
        name,
        image,
        sh(f'{PREPARE}; exec python3 -c "$SERVER"'),
        on="node-0",
        env=env,
        securityContext={"privileged": True},
        readinessProbe={"exec": {"command": ["grep", "-q", " /mounts/tier fuse", "/proc/mounts"]}, "periodSeconds": 1},
        volumeMounts=[{"name": "mounts", "mountPath": "/mounts", "mountPropagation": "Bidirectional"}],
        volumes=[{"name": "mounts", "hostPath": {"path": directory, "type": "DirectoryOrCreate"}}],
    )
    cluster.ready(name)


def test_a_running_pod_sees_a_mount_again_that_was_lost(cluster: Cluster, fuse_python: str, busybox: str) -> None:
    directory = f"/mnt/{cluster.namespace}"
    serve(cluster, "first", fuse_python, "one", directory)
    cluster.create(
        "reader",
        busybox,
        sh("while sleep 0.2; do cat /data/tier/file || echo lost; echo; done"),
        on="node-0",
        volumeMounts=[{"name": "data", "mountPath": "/data", "mountPropagation": "HostToContainer"}],
        volumes=[{"name": "data", "hostPath": {"path": directory}}],
    )
    cluster.ready("reader")
    await_line(cluster, "reader", "one")
    assert cluster.node.run("cat", f"{directory}/tier/file").stdout == "one"
    # The machine itself does not see what pods mount.
    assert not Path(directory).exists()
    cluster.delete("first")
    await_line(cluster, "reader", "lost")
    serve(cluster, "second", fuse_python, "two", directory)
    await_line(cluster, "reader", "two")


def await_line(cluster: Cluster, pod: str, line: str) -> None:
    wait_until(
        lambda: line in cluster.logs(pod).splitlines(),
        f"the line {line!r}",
        poll=0.2,
        details=lambda: cluster.logs(pod).splitlines()[-5:],
    )
