"""The cache daemon's world: a real API server, a real Alluxio with two workers, an S3 endpoint, a directory as Ceph."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from avactl.daemons.cache.alluxio.client import AlluxioEngine
from tests import forked
from tools.alluxio import Alluxio
from tools.alluxio.tiers import MIB, ROOT, SMALL
from tools.controlplane import ControlPlane, KubeClient
from tools.objectstore import ACCESS_KEY, SECRET_KEY, ObjectStore
from tools.waiting import wait_until

PATIENCE = 180.0
MEM = 64 * MIB  # of each worker
LEVEL = "alluxio.worker.tieredstore.level"
T = TypeVar("T")


@contextmanager
def alluxio(store: ObjectStore, ceph: Path, quota: int = MEM) -> Iterator[Alluxio]:
    """Start a cluster with /datasets and /results in the store, and /ceph in a directory.

    Writes to /results stay in two workers until they are persisted on demand.
    """
    properties = {
        **SMALL,
        f"{LEVEL}s": "1",
        f"{LEVEL}0.alias": "MEM",
        f"{LEVEL}0.dirs.path": "/cache/mem",
        f"{LEVEL}0.dirs.quota": f"{quota}B",
        f"{LEVEL}0.dirs.mediumtype": "MEM",
        "alluxio.security.login.username": "alluxio",
        "alluxio.user.file.metadata.sync.interval": "-1",
        "alluxio.user.file.writetype.default": "ASYNC_THROUGH",
        "alluxio.user.file.replication.durable": "2",
        "alluxio.user.file.persistence.initial.wait.time": "-1",
        "alluxio.underfs.s3.streaming.upload.enabled": "true",
        "alluxio.master.replication.check.interval": "10s",
    }
    options = [
        "--option",
        f"alluxio.underfs.s3.endpoint={store.url}",
        "--option",
        "alluxio.underfs.s3.disable.dns.buckets=true",
        "--option",
        f"s3a.accessKeyId={ACCESS_KEY}",
        "--option",
        f"s3a.secretKey={SECRET_KEY}",
    ]
    for bucket in ("cache-datasets", "cache-results"):
        store.client().create_bucket(Bucket=bucket)
    with Alluxio(properties, workers=2) as cluster:
        cluster.fs("mount", "--readonly", *options, "/datasets", "s3://cache-datasets")
        cluster.fs("mount", *options, "/results", "s3://cache-results")
        cluster.fs("mount", "/ceph", str(ceph))
        yield cluster


def content(name: str, size: int) -> bytes:
    """The bytes of a file, which differ from file to file."""
    return (hashlib.sha256(name.encode()).digest() * (size // 32 + 1))[:size]


class World:
    """The daemon, as a process, in a namespace of its own. Its tier is named `tier`."""

    def __init__(self, plane: ControlPlane, kube: KubeClient, namespace: str, cluster: Alluxio, folder: Path) -> None:
        self.kube, self.namespace, self.cluster = kube, namespace, cluster
        self._plane, self._folder = plane, folder
        self._processes: list[forked.Process] = []
        self.log = folder / "daemon.log"

    # -- objects ---------------------------------------------------------------------------------------------------

    def config(self, name: str, kind: str, data: Any) -> None:
        """Write a ConfigMap; `data` is its document, or a text."""
        key = {"cache-tier": "tier.json", "cache-dataset": "dataset.json"}[kind]
        text = data if isinstance(data, str) else json.dumps(data)
        metadata = {"name": name, "namespace": self.namespace, "labels": {"avactl.dev/config": kind}}
        self.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {key: text}})

    def tier(self, **more: Any) -> dict[str, Any]:
        """Declare the tier, and return the document."""
        mounts = ("/datasets", True), ("/results", False), ("/ceph", False)
        stores = [{"mount": path, "url": f"s3://of{path}", "readOnly": only} for path, only in mounts]
        document = {
            "name": "tier",
            "engine": "alluxio",
            "role": "read",
            "masters": self.cluster.masters,
            "fuseDirectory": "/mnt/avactl/tier",
            "volumeDirectory": "/mnt/avactl/.volumes/tier",
            "stores": stores,
            "writeBack": None,
            **more,
        }
        self.config("tier", "cache-tier", document)
        return document

    def dataset(
        self, name: str, path: str, prewarm: Any = None, claims: list[str] | None = None, version: str = "v1"
    ) -> None:
        """Declare a dataset with one version."""
        entry = {"name": version, "path": path, "bytes": 0, "files": 0, "claims": claims or []}
        self.config(
            f"dataset-{name}",
            "cache-dataset",
            {
                "namespace": "team",
                "name": name,
                "tier": "tier",
                "versions": [entry],
                "prewarm": prewarm,
            },
        )

    def status(self) -> dict[str, Any]:
        """Return what the daemon has written; {} before."""
        found = self.kube.find("v1", "ConfigMap", "avactl-cache-status", self.namespace)
        return json.loads(found["data"]["status.json"]) if found else {}

    def forget_status(self) -> None:
        """Delete the status, so that the next one is of the daemon that starts next."""
        if self.status():
            self.kube.delete("v1", "ConfigMap", "avactl-cache-status", self.namespace)

    def events(self, reason: str) -> list[dict[str, Any]]:
        """Return the events of the daemon with a reason."""
        found = self.kube.list("events.k8s.io/v1", "Event", self.namespace)
        return [each for each in found if each["reason"] == reason]

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self, *options: str) -> forked.Process:
        """Start a daemon."""
        where = ("--namespace", self.namespace, "--kubeconfig", str(self._plane.kubeconfig))
        with self.log.open("ab") as log:
            process = forked.start(["cache", "run", *where, "--interval", "0.3", *options], log=log, cwd=ROOT)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        """End all daemons."""
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `avactl cache …`."""
        options = ("--namespace", self.namespace, "--kubeconfig", str(self._plane.kubeconfig))
        return forked.run(["cache", *words, *options], cwd=ROOT)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, what: Callable[[], T | None], patience: float = PATIENCE) -> T:
        """Return the first true value."""
        return wait_until(what, timeout=patience, details=lambda: f"{self.status()}\n{self.log.read_text()[-3000:]}")

    def wait_for_log(self, text: str) -> None:
        """Wait until a daemon has logged a text; the API server is not needed."""
        wait_until(
            lambda: text in self.log.read_text(),
            f"`{text}` in the log",
            timeout=PATIENCE,
            details=lambda: self.log.read_text()[-3000:],
        )

    def engine(self, action: Callable[[AlluxioEngine], Awaitable[T]]) -> T:
        """Run something with an engine of one's own."""

        async def run() -> T:
            engine = AlluxioEngine(self.cluster.masters)
            try:
                return await action(engine)
            finally:
                await engine.close()

        return asyncio.run(run())
