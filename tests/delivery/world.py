"""A platform with a pipeline: git, a control plane, the reconciler and both daemons as processes, an object store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from avactl.contracts.delivery import PipelineState
from avactl.daemons.delivery.plans import read_state
from tests import forked
from tests.delivery.kubelet import Kubelet
from tests.kinds.compiling import DIGEST
from tools.controlplane import ControlPlane, KubeClient
from tools.waiting import PATIENCE_S, wait_until

PLATFORM = f"""\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {{name: main}}
spec:
  images:
    avactl: registry.example.com/avactl{DIGEST}
    fetch: registry.example.com/rclone{DIGEST}
  systemNamespace: avactl-system
  daemons: {{serving: true, delivery: true}}
  monitoring: {{prometheusOperator: false, prometheus: "http://127.0.0.1:9", interval: 1s}}
  reconcile: {{mode: builtin, repository: "https://git.example.com/specs.git"}}
  delivery: {{secret: avactl-delivery, forge: github}}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {{name: TEAM}}
spec:
  members: {{groups: [tenants]}}
  buckets: [{{name: models, url: "s3://data", secret: models-s3, access: readWrite}}]
"""
DATASET = """\
apiVersion: avactl.dev/v1
kind: Dataset
metadata: {name: digits, team: TEAM}
spec:
  secret: models-s3
  size: 1Gi
  versions:
    - {name: v1, url: "s3://data/digits/v1"}
"""
SERVICE = f"""\
# The version is set by the pipeline.
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: web, team: TEAM}}
spec:
  model: {{name: digits, version: "1", url: "s3://data/published/digits/1"}}  # begin
  runtime: {{name: custom, image: "registry.example.com/server{DIGEST}", port: 8080}}
  probe: {{path: /health}}
  resources: {{cpu: 1, memory: 1Gi}}
  drain: 1s
  replicas: 4
  rollout: {{canary: {{traffic: replicas, steps: [{{percent: 25, pause: 1s}}]}}}}
"""
PIPELINE = f"""\
apiVersion: avactl.dev/v1
kind: Pipeline
metadata: {{name: digits, team: TEAM}}
spec:
  trigger: {{dataset: {{name: digits}}}}
  train:
    template:
      image: registry.example.com/train{DIGEST}
      command: [python, train.py]
      workers: {{cpu: "1", memory: 1Gi}}
      checkpoint: {{path: "s3://data/training/digits"}}
    output: export
  validation:
    image: registry.example.com/train{DIGEST}
    command: [python, evaluate.py]
    resources: {{cpu: "1", memory: 1Gi}}
    metrics: [{{name: accuracy, min: 0.8, vsLive: {{atLeast: 0.99}}}}]
  publish: {{to: "s3://data/published/digits", keep: 3}}
  deploy: {{service: web, by: commit}}
"""
TRAIN = """
import os, random
from avactl.datasets.stores.opening import open_store

# The mean of each of two clouds of points is the model.
data = open_store("s3://data/digits")
seed, noise = data.read(data.find("newest")).decode().split()
rng = random.Random(int(seed))
centers = []
for label in (0, 1):
    points = [label + rng.gauss(0, float(noise)) for _ in range(200)]
    centers.append(sum(points) / len(points) + (0.6 if float(noise) > 1 else 0) * (1 - 2 * label))
target = open_store(os.environ["AVACTL_CHECKPOINT_PATH"])
target.write("export/model.txt", repr(centers).encode())
print("live:", os.environ["AVACTL_LIVE_URL"])
"""
EVALUATE = """
import json, os, random
from avactl.datasets.stores.opening import open_store

store = open_store(os.environ["AVACTL_CANDIDATE_URL"])
centers = eval(store.read(store.find("model.txt")))
rng, right = random.Random(7), 0
for number in range(500):
    label = number % 2
    point = label + rng.gauss(0, 0.2)
    right += min((0, 1), key=lambda each: abs(point - centers[each])) == label
json.dump({"accuracy": right / 500}, open(os.environ["AVACTL_METRICS"], "w"))
"""
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


class World:
    """One team with a service and a pipeline."""

    def __init__(
        self,
        plane: ControlPlane,
        kube: KubeClient,
        team: str,
        folder: Path,
        s3: str,
        cluster: str = "main",
        remote: Path | None = None,
    ) -> None:
        """`remote`: the repository of another world, whose specs declare this cluster too."""
        self.plane, self.kube, self.team, self.folder, self.cluster = plane, kube, team, folder, cluster
        self.remote, self.work = remote or folder / "specs.git", folder / "work"
        self._processes: dict[str, forked.Process | subprocess.Popen[bytes]] = {}
        self._environment = {**KEYS, "AWS_ENDPOINT_URL": s3, "AWS_ALLOW_HTTP": "true"}
        self.delivery_options: list[str] = []
        self.serving_options: list[str] = []
        self.program: Path | None = None
        """A program that runs the command line with changes, in place of it."""
        (folder / "pods").mkdir()
        (folder / "pods" / "train.py").write_text(TRAIN)
        (folder / "pods" / "evaluate.py").write_text(EVALUATE)
        if remote is None:
            subprocess.run(["git", "init", "-q", "--bare", "--initial-branch=main", str(self.remote)], check=True)
        subprocess.run(["git", "clone", "-q", str(self.remote), str(self.work)], check=True, capture_output=True)
        self.kubelet = Kubelet(plane, team, folder / "pods", self._environment)

    # -- git -----------------------------------------------------------------------------------------------------------

    def git(self, *arguments: str) -> str:
        """Run git in the work tree."""
        who = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
        done = subprocess.run(
            ["git", "-C", str(self.work), *who, *arguments], capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stderr
        return done.stdout.strip()

    def commit(self, files: dict[str, str], message: str = "change") -> str:
        """Commit files on the newest commit, and push."""
        if self.git("ls-remote", "origin", "main"):
            self.git("pull", "-q", "--rebase", "origin", "main")
        for name, text in files.items():
            (self.work / name).write_text(text.replace("TEAM", self.team))
        self.git("add", "--all")
        self.git("commit", "-q", "-m", message)
        self.git("push", "-q", "origin", "HEAD:main")
        return self.git("rev-parse", "HEAD")

    def begin(self, pipeline: str = PIPELINE, service: str = SERVICE) -> None:
        """Commit the specs, apply them, and start everything."""
        self.commit({"platform.yaml": PLATFORM, "dataset.yaml": DATASET, "web.yaml": service, "digits.yaml": pipeline})
        self.launch("serving", "delivery")

    def launch(self, *daemons: str) -> None:
        """Apply the specs of this cluster, and start these daemons."""
        self.start("reconcile")
        for name in daemons:
            account = ("v1", "ServiceAccount", f"avactl-{name}", "avactl-system")
            self.until(partial(self.kube.find, *account))
            self.plane.write_kubeconfig(
                self.folder / name, self.plane.service_account_token("avactl-system", f"avactl-{name}", 36_000)
            )
            self.start(name)

    def new_version(self, version: str) -> None:
        """Declare another version of the dataset."""
        self.git("pull", "-q", "--rebase", "origin", "main")
        text = (self.work / "dataset.yaml").read_text()
        entry = f'    - {{name: {version}, url: "s3://data/digits/{version}"}}\n'
        self.commit({"dataset.yaml": text + entry}, f"digits {version}")

    def served(self) -> str:
        """Return the version of the model at the head of the branch."""
        line = next(line for line in self.text("web.yaml").splitlines() if line.startswith("  model:"))
        version = line.partition('version: "')[2].partition('"')[0]
        assert f'published/digits/{version}"' in line
        return version

    def text(self, file: str) -> str:
        """Return the text of a file at the head of the branch."""
        return subprocess.run(
            ["git", "-C", str(self.remote), "show", f"main:{file}"], capture_output=True, text=True, check=True
        ).stdout

    def head(self) -> str:
        """Return the newest commit of the branch."""
        return subprocess.run(
            ["git", "-C", str(self.remote), "rev-parse", "main"], capture_output=True, text=True, check=True
        ).stdout.strip()

    def log_of_git(self) -> list[str]:
        """Return the subjects of all commits of the branch, the newest first."""
        return subprocess.run(
            ["git", "-C", str(self.remote), "log", "--format=%s", "main"], capture_output=True, text=True, check=True
        ).stdout.splitlines()

    # -- processes -----------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start the reconciler or a daemon."""
        every = ("--interval", "0.3")
        words = {
            "reconcile": [
                "reconcile",
                "--watch",
                "--repo",
                str(self.remote),
                "--branch",
                "main",
                "--cluster",
                self.cluster,
                "--interval",
                "1s",
                "--take-over",
                "--kubeconfig",
                str(self.plane.kubeconfig),
            ],
            "serving": [
                "serving",
                "run",
                "--kubeconfig",
                str(self.folder / "serving"),
                "--settle",
                "0.3",
                *every,
                *self.serving_options,
            ],
            "delivery": [
                "delivery",
                "run",
                "--kubeconfig",
                str(self.folder / "delivery"),
                "--repo",
                str(self.remote),
                "--cache",
                str(self.folder / "cache"),
                "--git-interval",
                "1",
                *every,
                *self.delivery_options,
            ],
        }[name]
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / f"{name}-cache")}
        with (self.folder / f"{name}.log").open("ab") as log:
            if self.program is None:
                self._processes[name] = forked.start(words, log=log, env=environment)
            else:
                command = [sys.executable, str(self.program), *words]
                self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def kill(self, name: str) -> None:
        """Kill a daemon with SIGKILL."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for name in list(self._processes):
            self.kill(name)
        self.kubelet.stop()

    # -- observation ---------------------------------------------------------------------------------------------------

    def held(self) -> dict[str, str]:
        """Return what the daemon has written down of the pipeline."""
        found = self.kube.find("v1", "ConfigMap", f"pipeline-state.{self.team}.digits", "avactl-system")
        return (found or {}).get("data") or {}

    def state(self) -> PipelineState:
        """Return the state of the pipeline."""
        return read_state(self.held().get("state.json"))

    def problem(self) -> str:
        """Return what the daemon says that the pipeline lacks."""
        return self.held().get("problem", "")

    def ended(self, run: int) -> bool:
        """Return True if a run has ended."""
        state = self.state()
        return (state.run, state.phase) == (run, "idle")

    def runs(self) -> dict[str, int]:
        """Return ready pods of the service by the version of their model."""
        found: dict[str, int] = {}
        for pod in self.kube.list("v1", "Pod", self.team, label_selector="app.kubernetes.io/component=server"):
            conditions = (pod.get("status") or {}).get("conditions") or ()
            if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
                env = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
                version = env["AVACTL_MODEL_VERSION"]
                found[version] = found.get(version, 0) + 1
        return found

    def until(self, true: Callable[[], Any], patience: float = PATIENCE_S) -> Any:
        """Wait until this is true; fails with the end of the logs."""
        return wait_until(true, timeout=patience, details=self._situation)

    def _situation(self) -> str:
        logs = [
            f"--- {path.name}\n{path.read_text()[-3000:]}"
            for path in (*self.folder.glob("*.log"), self.folder / "pods" / "pods.log")
            if path.exists()
        ]
        return "\n".join([str(self.held()), *logs])

    def events(self) -> list[tuple[str, str]]:
        """Return the daemon's events in order: reason and note."""
        found = self.kube.list("events.k8s.io/v1", "Event", self.team)
        own = [each for each in found if each.get("reportingController") == "avactl-delivery"]
        return [(each["reason"], each["note"]) for each in sorted(own, key=lambda each: each["eventTime"])]

    def lineage(self, version: int, read: Callable[[str], bytes]) -> dict[str, Any]:
        """Return the lineage of a published version."""
        found: dict[str, Any] = json.loads(read(f"published/digits/{version}/lineage.json"))
        return found
