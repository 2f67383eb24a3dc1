"""The tiers of examples/ava as compiled, scaled to one machine: only paths, ports, addresses and sizes differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from avactl.compiler import compile_tree
from avactl.spec.repository.tree import DirTree
from tools.alluxio.cluster import Alluxio
from tools.alluxio.fuse import Fuse
from tools.objectstore import ACCESS_KEY, SECRET_KEY, ObjectStore

ROOT = Path(__file__).resolve().parents[2]
ENDPOINTS = ("https://s3.example.com", "https://ceph.example.com")
"""Endpoints of the example's stores."""
MIB = 1024 * 1024

SMALL = {
    "alluxio.worker.management.tier.align.reserved.bytes": f"{4 * MIB}B",
    # A directory with less than the hard limit free gets no new blocks; with less than the soft limit, few.
    "alluxio.worker.reviewer.probabilistic.hardlimit.bytes": f"{MIB}B",
    "alluxio.worker.reviewer.probabilistic.softlimit.bytes": f"{4 * MIB}B",
    "alluxio.user.block.size.bytes.default": "1MB",
}
"""Sizes that the compiled properties leave at the engine's defaults, which do not fit small levels."""


class Tier:
    """One compiled tier."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.data: Mapping[str, str] = objects()["ConfigMap", f"{name}-alluxio"]["data"]
        """The ConfigMap: properties and scripts by file name."""
        self.properties = dict(line.split("=", 1) for line in self.data["alluxio-site.properties"].splitlines())

    def script(self, name: str, store: ObjectStore) -> str:
        """A script with the store's address, which looks for progress more often."""
        text = self.data[name].replace("sleep 10", "sleep 0.5")
        for endpoint in ENDPOINTS:
            text = text.replace(endpoint, store.url)
        return text

    def fuse(self, cluster: Alluxio) -> Fuse:
        """The tier's FUSE container, which does not wait for others at its start."""
        script = re.sub(r"sleep \$\(\(RANDOM % \d+\)\)", "sleep 0", self.data["fuse.sh"])
        files = {f"/config/{name}": self.data[name] for name in ("volumes.sh", "health.sh")}
        files["/config/fuse.sh"] = script
        # Masters of one machine; a test does not wait as long as a probe.
        hosts = re.sub(r"for host in .*; do", "for host in 127.0.0.1; do", files["/config/health.sh"])
        port = str(cluster.masters[0].rpartition(":")[2])
        files["/config/health.sh"] = re.sub(r"\b20\b", "1", hosts).replace("19998", port)
        files["/volumes/volumes"] = objects()["ConfigMap", f"{self.name}-volumes"]["data"]["volumes"]
        return Fuse(cluster, self.properties["alluxio.fuse.mount.point"], files)


@cache
def objects() -> dict[tuple[str, str], Any]:
    """All objects of examples/ava by kind and name."""
    result = compile_tree(DirTree(ROOT / "examples" / "ava"))
    return {(manifest.kind, manifest.name): manifest.body for manifest in result.manifests}


@contextmanager
def running(tier: Tier, store: ObjectStore, sizes: Mapping[str, str], **options: Any) -> Iterator[Alluxio]:
    """Start the tier's processes with other sizes, and mount its stores with its own script."""
    keys = ("ACCESS_KEY_ID", ACCESS_KEY), ("SECRET_ACCESS_KEY", SECRET_KEY)
    credentials = {f"STORE_{index}_{name}": value for index in range(4) for name, value in keys}
    logging = tier.data["log4j.properties"] + "log4j.logger.alluxio.conf.AlluxioProperties=DEBUG\n"
    with Alluxio({**tier.properties, **SMALL, **sizes}, logging=logging, **options) as cluster:
        cluster.script(tier.script("mount.sh", store), environment=credentials)
        yield cluster


def complaints(cluster: Alluxio) -> dict[str, list[str]]:
    """Lines about properties that are unknown, deprecated or refused, by process.

    Alluxio tells of unknown ones at level DEBUG only; Java's own properties are among them.
    """
    words = r".*Property alluxio\S* from source .* is unrecognized|.*(?:is deprecated|is invalid|is not accepted in).*"
    found = {name: re.findall(words, cluster.log(name).read_text()) for name in cluster.names}
    return {name: lines for name, lines in found.items() if lines}
