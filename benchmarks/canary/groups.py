"""A service whose replicas are groups of two pods, by the real controller of LeaderWorkerSets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from avactl.kinds.serving.groups import API, KIND
from avactl.program.manifest import templates_of
from benchmarks.canary.stage import DIGEST, HOSTS, PLATFORM, PODS, SERVICE, TEAM, Pace, Stage, compile_specs, present
from tools.leaderworkerset import LeaderWorkerSets

_MACHINES = """\
---
apiVersion: avactl.dev/v1
kind: MachineType
metadata: {name: gpu}
spec: {gpus: {model: A10, count: 16, memory: 24Gi}, cpu: 64, memory: 512Gi}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: gpu}
spec: {cluster: main, machineType: gpu, count: 1}
"""


class GroupStage(Stage):
    """One service of four groups: leaders run the model server, and workers only exist."""

    protocols = ("http",)
    kind = (API, KIND)
    options = ("--groups",)

    def __init__(self, pace: Pace, stack: ExitStack) -> None:
        super().__init__(pace, stack, analysed=False)
        labels = {"avactl.dev/pool": "gpu", "avactl.dev/gpu": "A10"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0", "labels": labels}}
        self.kube.patch(node)
        amounts = {"nvidia.com/gpu": "16"}
        self.kube.patch({**node, "status": {"capacity": amounts, "allocatable": amounts}}, subresource="/status")
        stack.enter_context(LeaderWorkerSets(self._plane, self.kube, self.folder))

    def deploy(self, version: int, *, in_place: bool = False) -> None:
        """Apply the platform, and the service with this version of its model."""
        platform = PLATFORM.replace("daemons: {serving: true}", "daemons: {serving: true}\n  leaderWorkerSet: {}")
        for manifest in compile_specs(
            platform.replace("URL", self._measures) + _MACHINES + self._service(version, in_place)
        ):
            if manifest.kind == KIND:
                for _, template in templates_of(manifest.body):
                    (container,) = template["spec"]["containers"]
                    container.setdefault("env", []).append({"name": "AVACTL_MODEL_VERSION", "value": str(version)})
            self.kube.apply(manifest.body, field_manager="avactl")

    def _service(self, version: int, in_place: bool) -> str:
        pace = self.pace
        steps = ", ".join(f"{{percent: {percent}, pause: {pace.pause:g}s}}" for percent in pace.steps)
        return f"""---
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: {SERVICE}, team: {TEAM}}}
spec:
  model: {{name: digits, version: "{version}", path: /opt/digits-{version}}}
  runtime: {{name: vllm, image: "registry.example.com/digits{DIGEST}"}}
  resources: {{cpu: 1, memory: 1Gi, gpus: 1}}
  llm: {{machines: 2}}
  replicas: {PODS}
  drain: {pace.drain}s
  expose: {{host: {HOSTS["http"]}}}
  rollout: {{canary: {{steps: [{steps}]}}}}
"""


@contextmanager
def group_stage(pace: Pace) -> Iterator[GroupStage]:
    """Start a stage with version 1, which answers through the gateway."""
    with ExitStack() as stack:
        made = GroupStage(pace, stack)
        present(made)
        yield made
