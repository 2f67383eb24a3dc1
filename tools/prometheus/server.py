"""A Prometheus that finds the pods of an API server by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import yaml

from tools.controlplane import ControlPlane, StartError, build_binaries, process
from tools.controlplane.build import Module
from tools.controlplane.folder import OwnedFolder
from tools.waiting import patience

MODULE = Module(
    Path(__file__).parent,
    "-s -w",
    {"prometheus": "github.com/prometheus/prometheus/cmd/prometheus"},
    # Other service discoveries are the clients of all clouds: most of the build.
    tags="remove_all_sd,enable_kubernetes_sd",
)
TIMEOUT = 60.0  # seconds
POLL = 0.05  # seconds


def build_binary() -> Path:
    """Return the path of `prometheus`, building it if it is not in the cache (some minutes). As `build_binaries`."""
    return build_binaries(["prometheus"], (MODULE,))["prometheus"]


def configuration(interval: float, targets: Sequence[str] = (), **access: str) -> str:
    """Return the configuration for all pods with the component `server`, which are read every `interval` seconds.

    Series have the labels `namespace` and `pod`, as by a PodMonitor. `targets`: hosts and ports of what else it reads.
    `access` says how it reaches the API server; by default, as a pod does.
    """
    meta = "__meta_kubernetes_pod"
    kept = {"action": "keep", "source_labels": [f"{meta}_label_app_kubernetes_io_component"], "regex": "server"}
    names = [
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{meta}_name"], "target_label": "pod"},
    ]
    scraped = {
        "job_name": "pods",
        "kubernetes_sd_configs": [{"role": "pod", **access}],
        "relabel_configs": [kept, *names],
    }
    others = {"job_name": "others", "static_configs": [{"targets": list(targets)}]}
    every = f"{round(interval * 1000)}ms"
    return yaml.safe_dump(
        {
            "global": {"scrape_interval": every, "scrape_timeout": every},
            "scrape_configs": [scraped, others],
        }
    )


class Prometheus(process.Processes):
    """A Prometheus on loopback with the `configuration`. Closed by `close`, with its files."""

    def __init__(self, plane: ControlPlane, interval: float, targets: Sequence[str] = ()) -> None:
        super().__init__()
        self._owned = OwnedFolder()
        self._port = process.free_port()
        config = configuration(interval, targets, kubeconfig_file=str(plane.kubeconfig))
        (self._owned.path / "prometheus.yml").write_text(config)
        self.start("prometheus")

    @property
    def url(self) -> str:
        """Address of its HTTP API."""
        return f"http://127.0.0.1:{self._port}"

    def start(self, name: str) -> None:
        """Start it, and wait until it is ready. Raises StartError."""
        folder = self._owned.path
        command: list[str | Path] = [
            build_binary(),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
        ]
        log = folder / f"{name}.log"
        child = process.spawn(command, log, {"HOME": str(folder)}, cwd=folder)
        self._processes[name] = child
        ends = time.monotonic() + patience(TIMEOUT)
        while not self._answers():
            if child.poll() is not None or time.monotonic() > ends:
                raise StartError(f"Prometheus did not start:\n{process.tail(log, 20)}")
            time.sleep(POLL)

    def close(self) -> None:
        """End it and remove its files."""
        for name in list(self._processes):
            self.kill(name)
        self._owned.remove()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False
