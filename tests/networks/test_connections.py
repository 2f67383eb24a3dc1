"""Which connections the compiled NetworkPolicies admit: those that the product needs, and no others.

A plugin enforces policies; these tests evaluate them as the API defines them (`evaluator.py`).
"""

from __future__ import annotations

from functools import cache

import pytest

from avactl.compiler import Compilation, compile_tree
from avactl.contracts.names import EXPERIMENT, GANG_LABEL, TEAM_LABEL
from avactl.kinds.team.network import METADATA_SERVICES
from tests.example_trees import example_tree
from tests.kinds.compiling import DIGEST, compiled
from tests.networks.evaluator import Network, Pod
from tests.networks.pods import COMPONENT, NAME, group_of, network_of, pairs, pods_of

MASTER, RENDEZVOUS, ANY = 29600, 29500, 41337
"""Port of a job master, torchrun's, and one that a process has chosen: NCCL, Gloo, mpirun, NIXL."""
PORTS = (22, 80, 2222, 2379, 5600, 6006, 8000, 8001, 8080, 8500, 8501, 8888, 8998, 9000, 9091, RENDEZVOUS, MASTER, ANY)
SPECS = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  namespaces: [{{name: gateways}}]
  daemons: {{scheduler: true, serving: true, delivery: true, metricsFrom: [observability]}}
  delivery: {{repository: "https://github.com/example/specs", secret: avactl-delivery}}
  images:
    avactl: registry.example.com/avactl{DIGEST}
    kubectl: registry.example.com/kubectl{DIGEST}
    tensorboard: registry.example.com/tensorboard{DIGEST}
    fetch: registry.example.com/rclone{DIGEST}
  storageClasses: {{checkpoint: shared, classes: [{{name: shared, accessModes: [ReadWriteMany]}}]}}
  monitoring: {{prometheusOperator: true}}
  leaderWorkerSet: {{}}
  exposure:
    gateway: {{name: public, namespace: gateways, inferencePools: true}}
    proxies: [{{namespace: envoy}}]
    domains: [{{name: ai.example.com}}]
---
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: main, machineType: v100-pcie-8, count: 16}}
---
kind: Team
metadata: {{name: vision}}
spec:
  namespaces: [{{name: vision}}, {{name: vision-two}}, {{name: vision-fast, hostNetwork: true}}]
  talksTo: [web]
---
kind: Team
metadata: {{name: web}}
---
kind: Team
metadata: {{name: ads}}
"""
JOBS = {
    "reduce": "strategy: allReduce, workers: {replicas: 2}, workerGroups: [{name: big, replicas: 1}]",
    "tf": "strategy: parameterServer, framework: tensorflow, workers: {replicas: 3}, servers: {}, evaluator: {}",
    "kv": "strategy: parameterServer, framework: mxnet, workers: {}, servers: {}",
    "stale": "strategy: parameterServer, framework: custom, consistency: ssp, staleness: 3, workers: {}, servers: {}",
    "elastic": "strategy: elastic, workers: {min: 1, max: 3}, checkpoint: {path: 's3://ckpt/elastic'}",
    "mpi": "strategy: mpi, workers: {replicas: 2}",
    "lone": "pod: {sidecars: [{name: proxy, image: registry.example.com/proxy:1, ports: [{containerPort: 5432},"
    " {containerPort: 53, protocol: UDP}]}]}",
    "board": "tensorboard: {logdir: /logs, storage: 10Gi}",
}
PLAIN = 'model: {name: m, version: "1"}, runtime: {name: triton, image: "registry.example.com/triton:24.05"}'
LLM = """
  model: {name: m, version: "1", url: "s3://models/m", secret: models-s3, size: 40Gi}
  runtime: {name: vllm, image: "vllm/vllm-openai:v0.33.0"}
  resources: {cpu: 8, memory: 64Gi, gpus: 2, gpu: V100, sharedMemory: 16Gi}
"""
ROUTER = '{resources: {cpu: 4, memory: 32Gi, gpus: 2, gpu: V100}, router: {image: "registry.example.com/router:1"}}'
PICKER = '{resources: {cpu: 4, memory: 32Gi, gpus: 2, gpu: V100}, sidecar: {image: "registry.example.com/pd:1"}}'
EXPOSED = "  balance: gateway\n  expose: {host: chat.ai.example.com, paths: [/v1]}\n"
SERVICES = {
    "plain": f"spec: {{{PLAIN}, exposeTo: [ads], pod: {{sidecars: [{{name: proxy,"
    " image: 'registry.example.com/proxy:1', ports: [{containerPort: 5432}, {containerPort: 53, protocol: UDP}]}]}}",
    "groups": f"spec:{LLM}  llm: {{machines: 2}}\n  exposeTo: [ads]",
    "routed": f"spec:{LLM}  exposeTo: [ads]\n  llm:\n    prefill: {ROUTER}",
    "picked": f"spec:{LLM}{EXPOSED}  llm:\n    endpointPicker: {{service: epp, pods: {{app: epp}}}}\n"
    f"    prefill: {PICKER}",
    "shared": f"spec:{LLM}{EXPOSED.replace('chat.', 'shared.')}"
    "  llm: {endpointPicker: {image: registry.example.com/epp:1}}\n"
    "  replicas: 2\n  rollout: {canary: {steps: [{percent: 50}]}}",
}
OTHERS = f"""
kind: Workspace
metadata: {{name: lin, team: vision}}
spec: {{user: lin@example.com, image: "registry.example.com/lab:1", port: 8888}}
---
kind: Pipeline
metadata: {{name: ranker, team: vision}}
spec:
  trigger: {{schedule: {{cron: "0 3 * * *"}}}}
  train:
    template:
      strategy: parameterServer
      framework: tensorflow
      image: registry.example.com/train{DIGEST}
      command: [python, train.py]
      workers: {{replicas: 2}}
      servers: {{replicas: 1}}
      checkpoint: {{path: "s3://models/training"}}
  validation:
    image: registry.example.com/check{DIGEST}
    metrics: [{{name: auc, min: 0.7}}]
  publish: {{to: "s3://models/published"}}
---
kind: TrainingJob
metadata: {{name: fast, team: vision, namespace: vision-fast}}
spec:
  image: registry.example.com/train:1
  command: [python, train.py]
  strategy: allReduce
  hostNetwork: {{}}
  workers: {{replicas: 2}}
"""


@cache
def every_kind() -> Compilation:
    jobs = [
        f"kind: TrainingJob\nmetadata: {{name: {name}, team: vision}}\n"
        f"spec: {{image: registry.example.com/train:1, command: [python, train.py], {spec}}}"
        for name, spec in JOBS.items()
    ]
    services = [
        f"kind: ServingDeployment\nmetadata: {{name: {name}, team: vision}}\n{spec}" for name, spec in SERVICES.items()
    ]
    return compiled("\n---\n".join([SPECS, *jobs, *services, OTHERS]))


@pytest.fixture(scope="module")
def network() -> Network:
    return network_of(every_kind(), "main")


def extra_pods() -> dict[str, Pod]:
    """Return pods of members, and of components that others install."""
    of_experiment = {NAME: "trainingjob", GANG_LABEL: "try-1a2b", EXPERIMENT: "try-1a2b"}
    others = [
        Pod("own", "vision", {}),
        Pod("other-namespace", "vision-two", {}),
        Pod("epp", "vision", {"app": "epp"}),
        Pod("experiment-0", "vision", {**of_experiment, COMPONENT: "worker"}),
        Pod("experiment-1", "vision", {**of_experiment, COMPONENT: "worker"}),
        Pod("talks-to", "web"),
        Pod("exposed-to", "ads"),
        Pod("prometheus", "observability"),
        Pod("gateway", "gateways"),
        Pod("proxy", "envoy"),
        Pod("dns", "kube-system"),
        Pod("stranger", "default"),
    ]
    return {pod.name: pod._replace(ip=f"10.1.0.{i}") for i, pod in enumerate(others, 1)}


@pytest.fixture(scope="module")
def pods() -> dict[str, Pod]:
    """The pods of all kinds, and the others."""
    return {**pods_of(every_kind(), "main"), **extra_pods()}


NEEDED = [
    # A job's own pods, on every port: each strategy.
    ("vision/reduce-worker", "vision/reduce-worker-big", (RENDEZVOUS, ANY)),
    ("vision/reduce-worker-big", "vision/reduce-worker", (RENDEZVOUS, ANY)),
    ("vision/tf-evaluator", "vision/tf-worker", (ANY,)),
    ("vision/tf-worker", "vision/tf-server", (2222,)),
    ("vision/tf-chief", "vision/tf-worker", (2222,)),
    ("vision/kv-server", "vision/kv-scheduler", (9091, ANY)),
    ("vision/kv-worker", "vision/kv-server", (ANY,)),
    ("vision/stale-worker", "vision/stale-master", (MASTER,)),
    ("vision/elastic-worker", "vision/elastic-master", (MASTER,)),
    ("vision/elastic-master", "vision/elastic-worker", (ANY,)),
    ("vision/mpi-worker", "vision/mpi-launcher", (ANY,)),
    ("vision/mpi-launcher", "vision/mpi-worker", (ANY,)),
    ("vision/ranker-train-worker", "vision/ranker-train-server", (2222,)),
    ("experiment-0", "experiment-1", (RENDEZVOUS, ANY)),
    # What the team reads of a job.
    ("own", "vision/board-tensorboard", (6006,)),
    ("vision/lin", "vision/board-tensorboard", (6006,)),
    ("other-namespace", "vision/board-tensorboard", (6006,)),
    ("vision/lin", "vision/lone-worker", (5432,)),
    ("prometheus", "vision/elastic-master", (8080,)),
    ("prometheus", "vision/stale-master", (8080,)),
    # Services.
    ("own", "vision/plain", (8000, 8001, 8002, 5432)),
    ("vision/ranker-validate", "vision/plain", (8000, 8001)),
    ("talks-to", "vision/plain", (8000, 8001)),
    ("exposed-to", "vision/plain", (8000, 8001)),
    ("gateway", "vision/plain", (8000,)),
    ("prometheus", "vision/plain", (8002,)),
    ("vision/groups-1", "vision/groups", (RENDEZVOUS, ANY)),
    ("vision/groups", "vision/groups-1", (RENDEZVOUS, ANY)),
    ("talks-to", "vision/groups", (8000,)),
    ("exposed-to", "vision/groups", (8000,)),
    ("vision/lin", "vision/groups", (8000,)),
    ("prometheus", "vision/groups", (8000,)),
    ("vision/routed", "vision/routed-1", (5600, ANY)),
    ("vision/routed-1", "vision/routed", (5600, ANY)),
    ("vision/routed-router", "vision/routed", (8000,)),
    ("vision/routed-router", "vision/routed-1", (8000,)),
    ("own", "vision/routed-router", (8000,)),
    ("talks-to", "vision/routed-router", (8000,)),
    ("exposed-to", "vision/routed-router", (8000,)),
    ("prometheus", "vision/routed-router", (29000,)),
    ("proxy", "epp", (9002,)),
    ("epp", "vision/picked", (8000,)),
    ("proxy", "vision/shared-picker", (9002,)),
    ("proxy", "vision/shared-alt-picker", (9002,)),
    ("prometheus", "vision/shared-alt-picker", (9090,)),
    ("vision/shared-picker", "vision/shared", (8000,)),
    ("proxy", "vision/shared", (8000,)),
    ("proxy", "vision/picked", (8000,)),
    ("vision/picked-1", "vision/picked", (5600, 8000)),
    # Pods without a spec, and workspaces.
    ("own", "other-namespace", (ANY,)),
    ("vision/lone-worker", "own", (ANY,)),
    ("talks-to", "own", (ANY,)),
    ("own", "vision/lin", (8888,)),
    ("gateway", "vision/lin", (8888,)),
    ("prometheus", "avactl-system/avactl-scheduler", (8080,)),
    # The network of machines has no policies.
    ("stranger", "vision-fast/fast-worker", (ANY,)),
]
REFUSED = [
    # Other jobs, and other pods of the team.
    *(
        (source, destination, (RENDEZVOUS, MASTER, 2222, 8080, 9091, ANY))
        for destination in (
            "vision/reduce-worker",
            "vision/tf-evaluator",
            "vision/tf-server",
            "vision/kv-scheduler",
            "vision/stale-master",
            "vision/elastic-master",
            "vision/elastic-worker",
            "vision/mpi-launcher",
            "vision/mpi-worker",
            "vision/ranker-train-server",
            "vision/ranker-validate",
            "experiment-0",
        )
        for source in ("own", "other-namespace", "vision/lin", "vision/lone-worker", "vision/plain", "talks-to")
    ),
    ("vision/elastic-worker", "vision/stale-master", (MASTER,)),
    ("vision/reduce-worker", "experiment-0", (RENDEZVOUS,)),
    ("experiment-0", "vision/reduce-worker", (RENDEZVOUS,)),
    ("vision/board-tensorboard", "vision/board-worker", (ANY,)),
    ("vision/lin", "vision/lone-worker", (RENDEZVOUS, ANY)),
    ("talks-to", "vision/lone-worker", (5432,)),
    ("prometheus", "vision/elastic-master", (MASTER, ANY)),
    ("prometheus", "vision/elastic-worker", (8080, ANY)),
    ("talks-to", "vision/board-tensorboard", (6006,)),
    # Groups of model servers trust who connects.
    ("own", "vision/groups", (RENDEZVOUS, ANY)),
    ("own", "vision/groups-1", (8000, ANY)),
    ("vision/plain", "vision/groups", (ANY,)),
    ("vision/groups", "vision/routed", (5600, ANY)),
    ("talks-to", "vision/groups", (RENDEZVOUS, ANY)),
    ("exposed-to", "vision/groups-1", (8000, ANY)),
    ("talks-to", "vision/routed", (8000, 5600)),
    ("exposed-to", "vision/routed", (8000, 5600)),
    ("proxy", "vision/routed", (8000,)),
    ("proxy", "vision/picked", (5600,)),
    ("proxy", "vision/shared-picker", (9003, 9090)),
    ("own", "vision/shared-picker", (9002, 9090)),
    ("vision/shared", "vision/shared-picker", (9002,)),
    ("exposed-to", "vision/plain", (8002, 5432, ANY)),
    ("stranger", "vision/plain", (8000,)),
    ("proxy", "vision/plain", (8000,)),
    # Sessions are one user's; daemons are the platform's.
    ("talks-to", "vision/lin", (8888, ANY)),
    ("exposed-to", "own", (ANY,)),
    ("own", "talks-to", (ANY,)),
    ("own", "exposed-to", (ANY,)),
    ("own", "avactl-system/avactl-scheduler", (8080,)),
    ("prometheus", "avactl-system/avactl-scheduler", (22,)),
]


def test_needed_connections_are_admitted(network: Network, pods: dict[str, Pod]) -> None:
    refused = [
        (source, destination, port)
        for source, destination, ports in NEEDED
        for port in ports
        if not network.admits(pods[source], pods[destination], port)
    ]
    assert refused == []
    for destination in ("vision/lone-worker", "vision/plain"):
        assert network.admits(pods["own"], pods[destination], 53, "UDP"), destination
        assert not network.admits(pods["own"], pods[destination], 53), destination


def test_other_connections_are_refused(network: Network, pods: dict[str, Pod]) -> None:
    admitted = [
        (source, destination, port)
        for source, destination, ports in REFUSED
        for port in ports
        if network.admits(pods[source], pods[destination], port)
    ]
    assert admitted == []


def test_every_pod_reaches_dns_and_stores_but_no_metadata_service(network: Network, pods: dict[str, Pod]) -> None:
    own = [pod for pod in pods.values() if TEAM_LABEL in network.namespaces.get(pod.namespace, {})]
    assert len(own) > 30
    for pod in own:
        assert network.admits(pod, pods["dns"], 53, "UDP"), pod
        assert network.admits(pod, "198.51.100.7", 443), pod
        closed = [ip for ip in METADATA_SERVICES if network.admits(pod, ip, 80)]
        assert pod.host_network == bool(closed), pod


@cache
def ava() -> Compilation:
    return compile_tree(example_tree("ava"))


@pytest.mark.parametrize("cluster", ["train", "serve"])
def test_all_pairs_of_pods_of_an_organisation(cluster: str) -> None:
    network, pods = network_of(ava(), cluster), pods_of(ava(), cluster)
    open_to_team = {"tensorboard": {6006}, "workspace": set(PORTS)}
    count = 0
    for source, destination in pairs(pods):
        admitted = {port for port in PORTS if network.admits(source, destination, port)}
        kind, count = destination.labels[NAME], count + 1
        teams = [network.namespaces[pod.namespace].get(TEAM_LABEL) for pod in (source, destination)]
        if group_of(source) == group_of(destination):
            assert admitted == set(PORTS), (source.name, destination.name)
        elif kind == "servingdeployment":
            declared = {port.number for port in destination.ports}
            assert admitted <= declared, (source.name, destination.name)
            assert admitted or teams[0] != teams[1], (source.name, destination.name)
        elif teams[1] is not None:
            same = teams[0] == teams[1] is not None
            wanted = open_to_team.get(destination.labels[COMPONENT], set()) if same else set()
            assert admitted == wanted, (source.name, destination.name)
        else:
            # Tiers, their Jobs and daemons accept no pod of a team.
            assert teams[0] is None or not admitted, (source.name, destination.name)
    assert count == len(pods) * (len(pods) - 1) > 0


def test_workers_of_a_tier_reach_its_masters() -> None:
    network, pods = network_of(ava(), "train"), pods_of(ava(), "train")
    for tier in ("read", "write"):
        for source in (f"{tier}-worker", f"{tier}-fuse", "avactl-cache"):
            assert network.admits(pods[f"avactl-cache/{source}"], pods[f"avactl-cache/{tier}-master"], 19998), source
