"""Generate a large, realistic spec repository: clusters with pools and caches, and teams with quotas, data, jobs,
services and workspaces. The same arguments give the same bytes.

    python -m benchmarks.generate DIR [--objects 10000 | --specs 2000] [--seed 0]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

TEAMS_IN_CLUSTER = 25
_WORDS = (
    "resnet",
    "detector",
    "captions",
    "ranker",
    "speech",
    "segment",
    "video",
    "ocr",
    "faces",
    "search",
    "ads",
    "translate",
    "embed",
    "depth",
    "pose",
    "audio",
    "gbdt",
    "recall",
    "rerank",
    "filter",
)


def _image(name: str) -> str:
    return f"registry.example.com/{name}@sha256:{sha256(name.encode()).hexdigest()}"


def _spec(kind: str, name: str, team: str | None, *lines: str) -> str:
    owner = f", team: {team}" if team else ""
    head = f"apiVersion: avactl.dev/v1\nkind: {kind}\nmetadata: {{name: {name}{owner}}}\nspec:\n"
    return head + "".join(f"  {line}\n" for line in lines)


def _cluster(index: int) -> Iterator[tuple[str, str]]:
    name = f"cluster-{index}"
    images = [
        f"  {use}: {_image(f'platform/{use}')}"
        for use in ("avactl", "alluxio", "git", "tensorboard", "fetch", "kubectl")
    ]
    yield (
        f"clusters/{name}.yaml",
        _spec(
            "Cluster",
            name,
            None,
            "images:",
            *images,
            "daemons: {scheduler: true}",
            "storageClasses: {default: ceph-rbd, cache: local-ssd}",
            "namespaces: [{name: monitoring, podSecurity: baseline}]",
        ),
    )
    pools = [("v100", "dgx1-v100", 400), ("p100", "dgx1-p100", 400), ("t4", "t4-4", 400), ("a10", "a10", 1600)]
    yield (
        f"pools/{name}.yaml",
        "---\n".join(
            _spec("NodePool", f"{name}-{pool}", None, f"cluster: {name}", f"machineType: {machine}", f"count: {count}")
            for pool, machine, count in pools
        ),
    )
    tiers = [("MEM", "64Gi"), ("SSD", "2Ti")]
    for role in ("read", "write"):
        yield (
            f"caches/{name}-{role}.yaml",
            _spec(
                "CacheTier",
                f"{name}-{role}",
                None,
                f"cluster: {name}",
                f"role: {role}",
                f"workers: {{pools: [{name}-v100], tiers: ["
                + ", ".join(f"{{medium: {medium}, quota: {quota}}}" for medium, quota in tiers)
                + "]}",
                f'underStores: [{{mount: /{role}, url: "s3://{name}-{role}", secret: {role}-s3}}]',
            ),
        )


class _Team:
    """One team's specs, and the GPUs that they request."""

    def __init__(self, index: int, random: Random) -> None:
        self.name = f"team-{index:04}"
        self.cluster = f"cluster-{index // TEAMS_IN_CLUSTER}"
        self.random = random

    def specs(self) -> Iterator[tuple[str, str]]:
        yield "team.yaml", self._team()
        for i in range(3):
            yield f"datasets/data-{i}.yaml", self._dataset(i)
        strategies = ["single"] * 6 + ["allReduce"] * 5 + ["parameterServer"] * 4 + ["elastic"] * 3 + ["mpi"] * 2
        for i, strategy in enumerate(strategies):
            name = f"{self.random.choice(_WORDS)}-{i}"
            yield f"jobs/{name}.yaml", self._job(name, strategy)
        for i in range(8):
            name = f"serve-{self.random.choice(_WORDS)}-{i}"
            yield f"services/{name}.yaml", self._service(name, i)
        for i in range(6):
            yield f"workspaces/user-{i}.yaml", self._workspace(i)

    def _team(self) -> str:
        team = _spec(
            "Team",
            self.name,
            None,
            f"clusters: [{self.cluster}]",
            f"members: {{groups: [{self.name}], admins: [admin@example.com], viewers: [auditors]}}",
            f'buckets: [{{name: results, url: "s3://{self.cluster}-write/{self.name}", tier: {self.cluster}-write}}]',
        )
        gpus = "".join(f"\n    - {{gpu: {gpu}, guaranteed: 64, borrow: 64}}" for gpu in ("V100", "P100", "T4", "A10"))
        return team + "---\n" + _spec("Quota", "gpus", self.name, "gpus:" + gpus, "cpu: 8000", "memory: 40Ti")

    def _dataset(self, index: int) -> str:
        versions = self.random.randint(1, 3)
        return _spec(
            "Dataset",
            f"data-{index}",
            self.name,
            "description: Images, cut and labelled.",
            f"tier: {self.cluster}-read",
            f"size: {self.random.randint(10, 900)}Gi",
            "versions:",
            *(
                f'  - {{name: v{v}, url: "s3://{self.cluster}-read/{self.name}/data-{index}/v{v}"}}'
                for v in range(1, versions + 1)
            ),
        )

    def _job(self, name: str, strategy: str) -> str:
        random = self.random
        framework = {"parameterServer": "tensorflow", "mpi": "custom"}.get(strategy, "pytorch")
        gpu = random.choice(["V100", "P100"])
        lines = [
            f"strategy: {strategy}",
            f"framework: {framework}",
            f"image: {_image(f'{self.name}/{framework}')}",
            f'command: [python, {name}.py, --epochs, "{random.randint(10, 90)}"]',
            "env:",
            "  NCCL_DEBUG: WARN",
            f'  SEED: "{random.randint(1, 1000)}"',
        ]
        match strategy:
            case "single":
                lines.append(f"workers: {{gpus: {random.choice([1, 2, 4])}, gpu: {gpu}, cpu: 8, memory: 64Gi}}")
            case "elastic":
                most = random.randint(4, 8)
                lines.append(f"workers: {{min: 2, max: {most}, gpus: 4, gpu: {gpu}, cpu: 8, memory: 64Gi}}")
            case "mpi":
                lines.append(f"workers: {{replicas: {random.randint(2, 8)}, cpu: 16, memory: 64Gi}}")
                lines.append("launcher: {cpu: 1, memory: 2Gi}")
            case _:
                lines += [
                    "workers:",
                    f"  replicas: {random.randint(2, 4)}",
                    "  gpus: 8",
                    f"  gpu: {gpu}",
                    "  link: nvlink",
                    "  cpu: 32",
                    "  memory: 192Gi",
                ]
        if strategy == "parameterServer":
            lines.append(f"servers: {{replicas: {random.randint(1, 3)}, cpu: 8, memory: 64Gi}}")
        lines.append(f"datasets: [{{name: data-{random.randint(0, 2)}, mount: /data}}]")
        if strategy != "single":
            path = f"s3://{self.cluster}-write/{self.name}/{name}"
            lines.append(f'checkpoint: {{path: "{path}", every: {random.randint(5, 60)}m, keep: 3}}')
        return _spec("TrainingJob", name, self.name, *lines)

    def _service(self, name: str, index: int) -> str:
        random = self.random
        gpu = random.choice([", gpu: T4", ", gpu: A10"]) if index % 2 else ""
        most = random.randint(3, 6)
        runtime = random.choice(["tensorflowServing", "triton"])
        # Triton reads batching from a file of its model.
        batching = [] if runtime == "triton" else ["batching: {maxSize: 32, maxDelay: 5ms}"]
        return _spec(
            "ServingDeployment",
            name,
            self.name,
            f'model: {{name: {name}, version: "{random.randint(1, 99)}", '
            f'url: "s3://models/{self.name}/{name}", secret: models-s3}}',
            f"runtime: {{name: {runtime}, image: {_image('serving/' + runtime.lower())}}}",
            f"resources: {{cpu: 4, memory: 16Gi, gpus: {index % 2}{gpu}}}",
            f"replicas: {{min: 2, max: {most}}}" if random.random() < 0.5 else f"replicas: {most}",
            *batching,
        )

    def _workspace(self, index: int) -> str:
        gpus = self.random.choice([["gpus: 0"], ["gpus: 1", "gpu: T4"], ["gpus: 1", "gpu: A10"]])
        return _spec(
            "Workspace",
            f"user-{index}",
            self.name,
            f"user: user{index}@{self.name}.example.com",
            f"image: {_image('platform/jupyter')}",
            *gpus,
            f"storage: {self.random.choice([20, 50, 100])}Gi",
            f"datasets: [{{name: data-{index % 3}, mount: /data}}]",
        )


def repository(teams: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the paths and texts of the files of a repository with `teams` teams."""
    yield "avactl.yaml", "include: [clusters, pools, caches, teams]\n"
    for index in range(-(-teams // TEAMS_IN_CLUSTER)):
        yield from _cluster(index)
    for index in range(teams):
        team = _Team(index, Random(seed * 1_000_003 + index))
        for path, text in team.specs():
            yield f"teams/{team.name}/{path}", text


def _objects(teams: int, seed: int) -> int:
    from avactl.compiler import compile_tree
    from avactl.spec.repository.tree import MemoryTree

    compilation = compile_tree(MemoryTree(dict(repository(teams, seed))))
    if not compilation.ok:
        raise RuntimeError(compilation.diagnostics[0])
    return len(compilation.manifests)


def teams_for(objects: int, seed: int = 0) -> int:
    """Return the number of teams for at least `objects` objects, extrapolated from small repositories."""
    one, nine = _objects(1, seed), _objects(9, seed)
    each = (nine - one) / 8
    teams = max(1, round((objects - (one - each)) / each))
    while _objects(teams, seed) < objects:
        teams += 1
    return teams


def specs_of(teams: int) -> int:
    """Return the number of specs of a repository with `teams` teams."""
    return sum(text.count("apiVersion:") for _, text in repository(teams))


def generate(directory: str | Path, objects: int = 10_000, *, specs: int | None = None, seed: int = 0) -> Path:
    """Write a repository that compiles to at least `objects` objects, or has at least `specs` specs."""
    teams = teams_for(objects, seed) if specs is None else next(n for n in range(1, specs) if specs_of(n) >= specs)
    root = Path(directory)
    for path, text in repository(teams, seed):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("directory", nargs="?", default=None)
    parser.add_argument("--objects", type=int, default=10_000, help="objects that it compiles to, at least")
    parser.add_argument("--specs", type=int, default=None, help="or: specs that it has, at least")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    directory = given.directory or tempfile.mkdtemp(prefix="avactl-specs-")
    print(generate(directory, given.objects, specs=given.specs, seed=given.seed))


if __name__ == "__main__":
    main()
