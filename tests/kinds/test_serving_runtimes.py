"""Serving runtimes: one is one module, and nothing else names it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from avactl.kinds.serving.parts.scaling import ServerMetrics
from avactl.kinds.serving.runtime import ServingRuntime, runtimes
from avactl.kinds.serving.runtime_facts import RETIRED, runtime_names
from avactl.kinds.serving.spec import Batching
from tests.test_layout import ROOT, tracked

FOLDER = "avactl/kinds/serving/runtimes/"
ALLOWED = {"avactl/kinds/serving/runtime_facts.py", "avactl/workbench/importer/sources/kserve.py"}
"""Modules that name runtimes: what to use in place of those that were removed, and KServe's names of its own."""
DOCS = ROOT / "docs" / "serving.md"
FAKE = '''
"""Flash Server 7, for the test."""

from avactl.kinds.serving.queries import p99, rate, share, sum_of_pods
from avactl.kinds.serving.runtime import (
    BatchingSupport, LanguageModelSupport, ModelServer, ServingRuntime, model_directory,
)


def server(spec, ports):
    path = model_directory(spec)
    args = [f"--dir={path}", f"--listen={ports['http']}"]
    if spec.batching is not None:
        args.append(f"--batch={spec.batching.max_size}")
    return ModelServer(["flashd"], args, ports, path, "/up", "/alive", (ports["http"], "/stats"))


RUNTIME = ServingRuntime(
    title="Flash", version="7", files="a directory", ports={"http": 7000}, startup=120, aliases=("flashd",),
    takes_path=True, needs_files=True, max_gpus=2, error_rate=share(rate("flash_bad"), rate("flash_all")),
    latency=p99("flash_seconds"), metrics={"queue": sum_of_pods("flash_waiting")}, images=("flash-image",),
    model_options=("--dir",), server=server, batching=BatchingSupport(fields=("max_size",), why="Flash is quick"),
    llm=LanguageModelSupport(),
)
'''
PLATFORM = """
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
spec:
  images: {avactl: "avactl@DIGEST", fetch: "rclone@DIGEST"}
  daemons: {scheduler: true, serving: true}
  monitoring: {prometheus: "http://prometheus.monitoring:9090"}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
spec: {clusters: [main]}
---
""".replace("DIGEST", "sha256:" + "a" * 64)
SERVICE = """
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {name: chat, team: vision}
spec:
  model: {name: chat, version: "1", url: "s3://models/chat"}
  runtime: {name: flashServer, image: "flash-image:7"}
  resources: {cpu: 2, memory: 4Gi}
  batching: {maxSize: 8}
  replicas: {min: 2, max: 4, metrics: {queue: 5}}
  rollout: {blueGreen: {analysis: {errorRate: 1, latency: 2}}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat, namespace: vision}
spec:
  selector: {matchLabels: {app: chat}}
  template:
    metadata: {labels: {app: chat}}
    spec:
      containers: [{name: flash, image: "flash-image:7", args: [--dir, /data/chat]}]
"""
RUN = """
import json, sys
from pathlib import Path
from avactl.cli.main import main
from avactl.compiler import compile_tree
from avactl.spec.repository.tree import MemoryTree
if len(sys.argv) > 1:
    main()
    sys.exit()
result = compile_tree(MemoryTree({"specs.yaml": sys.stdin.buffer.read()}))
print(json.dumps({
    "problems": [[each.code, each.message, each.hint] for each in result.diagnostics],
    "objects": {f"{each.kind}/{each.name}": each.body for each in result.manifests},
}))
"""


def run(directory: Path, text: str, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *command],
        cwd=directory,
        env={"PYTHONPATH": str(directory), "HOME": "/nonexistent"},
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def compiled(directory: Path, specs: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(directory, PLATFORM + specs))
    return found


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one more runtime."""
    directory = tmp_path_factory.mktemp("runtime")
    shutil.copytree(ROOT / "avactl", directory / "avactl", ignore=shutil.ignore_patterns("__pycache__"))
    (directory / FOLDER / "flash_server.py").write_text(FAKE)
    return directory


def test_an_unknown_runtime_is_refused() -> None:
    ((code, message, _),) = compiled(ROOT, SERVICE)["problems"]
    assert (code, "got string `flashServer`" in message) == ("invalid-value", True)


def test_another_runtime_is_one_module(extended: Path) -> None:
    result = compiled(extended, SERVICE)
    assert result["problems"] == []
    deployment = result["objects"]["Deployment/chat"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["flashd"]
    assert container["args"] == ["--dir=/models/chat", "--listen=7000", "--batch=8"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/up", "port": 7000}
    assert container["livenessProbe"]["httpGet"] == {"path": "/alive", "port": 7000}
    assert container["startupProbe"]["failureThreshold"] == 12
    assert result["objects"]["Service/chat"]["spec"]["ports"] == [{"name": "http", "port": 7000, "targetPort": 7000}]
    assert "/stats" in json.dumps(result["objects"]["PodMonitor/chat"])
    (trigger,) = result["objects"]["ScaledObject/chat"]["spec"]["triggers"]
    assert trigger["metadata"]["query"].startswith("sum(flash_waiting{")
    rollout = json.loads(deployment["metadata"]["annotations"]["avactl.dev/rollout"])
    queries = {each["name"]: each["promql"] for each in rollout["analysis"]["queries"]}
    assert "flash_bad" in queries["error-rate"]
    assert "flash_seconds_bucket" in queries["latency"]


WRONG = {
    "flashServer": ("flashd", "did you mean `flashServer`?"),
    ', url: "s3://models/chat"': ("", "`model` requires `url`, `dataset` or `path`"),
    "memory: 4Gi": ("memory: 4Gi, gpus: 4", "Flash uses 2 GPUs, and a pod requests 4"),
    "maxSize: 8": ("maxSize: 8, queue: 3", "`queue` has no effect here: Flash is quick"),
    "queue: 5": ("tokens: 5", "Flash has no metric for `tokens`"),
    "flashServer, image": ("triton, image", "`llm` has options of Flash, SGLang and vLLM, and Triton has none of them"),
    "  llm: {}": ('  llm: {adapters: [{name: sql, url: "s3://a"}]}', "Flash has no options for `adapters`"),
    "  llm: {} ": ("  llm: {machines: 2} ", "Flash has no options for `machines`"),
    "  llm: {}   ": ("  llm: {maxLength: 4096, gpuMemory: 80%}   ", "Flash has no options for `maxLength`"),
    "  llm: {}  ": ("  llm: {prefill: {router: {image: a}}}  ", "Flash has no options for `prefill`"),
}
"""Parts of SERVICE, what they are replaced with, and what is said of it."""


def test_what_another_runtime_cannot_do_is_refused(extended: Path) -> None:
    specs = []
    for index, (old, (new, _)) in enumerate(WRONG.items()):
        text = SERVICE.replace("metadata: {name: chat,", f"metadata: {{name: chat-{index},") + "  llm: {}   \n"
        assert old in text
        specs.append(text.replace(old, new))
    problems = compiled(extended, "---".join(specs))["problems"]
    for _, said in WRONG.values():
        assert any(said in message or said in hint for _, message, hint in problems), (said, problems)


def test_commands_know_another_runtime(extended: Path) -> None:
    (extended / "deployment.yaml").write_text(DEPLOYMENT)
    assert "flashServer" in run(extended, "", "explain", "servingdeployment.spec.runtime.name")
    assert '"flashServer"' in run(extended, "", "schema", "ServingDeployment")
    run(extended, "", "import", "deployment.yaml", "-o", "specs")
    spec = (extended / "specs" / "teams" / "vision" / "chat.yaml").read_text()
    assert 'model: {name: chat, version: "1", path: /data/chat}' in spec
    assert "runtime: {name: flashServer," in spec


def _mentions(text: str) -> set[str]:
    """Return the runtimes that a text names; not `custom`, which is also a word, nor options such as `--vllm-port`."""
    words = {name: (name, each.title) for name, each in runtimes().items() if not each.is_generic}
    return {name for name, forms in words.items() if re.search(rf"(?<!-)\b({'|'.join(map(re.escape, forms))})\b", text)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('if spec.runtime.name == "vllm":', {"vllm"}),
        ("# Triton reads it from a file", {"triton"}),
        ("from avactl.kinds.serving.runtimes import sglang", {"sglang"}),
        ("a custom server, and its item", set()),
    ],
)
def test_a_mention_of_a_runtime_is_found(text: str, found: set[str]) -> None:
    assert _mentions(text) == found


def test_only_a_runtimes_own_module_names_it() -> None:
    for path in tracked("avactl/*.py", "avactl/**/*.py"):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(FOLDER) and name not in ALLOWED:
            assert _mentions(path.read_text()) == set(), name


def test_no_code_of_services_asks_for_a_name() -> None:
    importer = ROOT / "avactl" / "workbench" / "importer" / "sources" / "services.py"
    for path in [importer, *tracked("avactl/kinds/serving/*.py", "avactl/kinds/serving/**/*.py")]:
        if path.is_relative_to(ROOT / FOLDER):
            continue
        tree = ast.parse(path.read_text())
        constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        assert constants.isdisjoint(runtime_names()), path


def test_records_have_the_keys_of_specs() -> None:
    for name, each in runtimes().items():
        assert set(each.metrics) <= set(ServerMetrics.model_fields), name
        assert set(each.batching.fields) <= set(Batching.model_fields), name
        assert each.batching.why or len(each.batching.fields) == 3, name
        assert name not in RETIRED
        assert name.casefold() not in each.aliases


def _ports(ports: Mapping[str, int]) -> str:
    numbers = [str(ports.get(name, "–")) for name in ("http", "grpc")]
    return ", ".join([*numbers, str(ports.get("metrics", "as HTTP"))])


def _keys(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words) or "–"


def documented_row(name: str, each: ServingRuntime) -> str:
    """The row of a runtime in the table of docs/serving.md."""
    fields = [to_camel(field) for field in each.batching.fields]
    ports = "`port`, `grpcPort`" if each.is_generic else _ports(each.ports)
    queries = [key for key, query in (("errorRate", each.error_rate), ("latency", each.latency)) if query]
    cells = [
        f"`{name}`",
        f"{each.title} {each.version}".strip(),
        ports,
        f"{each.startup // 60}m",
        each.files,
        "yes" if len(fields) == 3 else _keys(fields),
        "yes" if each.dynamic else "–",
        "yes" if each.llm else "–",
        _keys(map(to_camel, each.metrics)),
        _keys(queries),
    ]
    return f"| {' | '.join(cells)} |"


def test_the_documented_table_is_that_of_the_records() -> None:
    lines = DOCS.read_text().splitlines()
    start = lines.index("## Runtimes")
    table = [line for line in lines[start : lines.index("## Several models and versions")] if line.startswith("| `")]
    assert table == [documented_row(name, each) for name, each in runtimes().items()]
