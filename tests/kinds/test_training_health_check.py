"""The health check of a compiled job: its init containers, and what its Job does with their exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from avactl_worker.health_check import FAILED, REPLACED

from avactl.contracts import names
from avactl.daemons.elastic.library import copy_library
from avactl.kinds.training.commands import python_interpreter
from avactl.kinds.training.init_containers import health_check
from avactl.workbench.local.addresses import AddressBlock
from tests.kinds.on_base import Objects, objects
from tests.kinds.training import HEAD, container, job, pod
from tools.waiting import patience

CHECKED = HEAD + "  strategy: allReduce\n  healthCheck: {timeout: 90s}\n"


def init(found: Objects, role: str = "worker") -> list[dict[str, Any]]:
    containers: list[dict[str, Any]] = pod(found, role)["spec"]["initContainers"]
    return containers


def test_exit_codes_are_those_of_the_library() -> None:
    assert (names.REPLACED_EXIT, health_check.GAVE_UP) == (REPLACED, FAILED)
    found = objects(CHECKED)
    rules = {each["onExitCodes"]["values"][0]: each for each in job(found)["spec"]["podFailurePolicy"]["rules"][:2]}
    assert {code: rule["action"] for code, rule in rules.items()} == {REPLACED: "Ignore", FAILED: "FailJob"}
    assert {rule["onExitCodes"]["containerName"] for rule in rules.values()} == {init(found)[1]["name"]}


def test_the_check_has_the_machine_of_the_worker_and_comes_first() -> None:
    resources = "  workers: {replicas: 3, gpus: 8, gpu: V100, memory: 32Gi, sharedMemory: 8Gi}\n"
    code = f"  code: {{git: {{url: 'https://git.example.com/n.git', ref: {'a' * 40}}}}}\n"
    found = objects(CHECKED + resources + code)
    library, check, *others = init(found)
    worker = container(found)
    assert [each["name"] for each in (library, check, *others)] == ["worker-library", "health-check", "code"]
    assert check["image"] == worker["image"]
    assert check["resources"] == worker["resources"]
    assert {"shared-memory", "home"} <= {each["name"] for each in check["volumeMounts"]}
    assert check["args"][-2:] == ["--gpus", "8"]
    assert "nvidia.com/gpu" not in str(library["resources"])


def test_only_workers_are_checked_and_all_groups() -> None:
    more = "  framework: tensorflow\n  evaluator: {}\n  workers: {replicas: 2}\n  workerGroups: [{name: old}]\n"
    found = objects(CHECKED + more)
    assert "initContainers" in pod(found, "worker")["spec"]
    assert init(found, "worker-old")[1]["args"][:2] == ["--workers", "3"]
    assert "health-check" not in {each["name"] for each in init(found, "evaluator")}


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["/opt/conda/bin/python", "train.py"], "/opt/conda/bin/python"),
        (["python3.11", "-m", "train"], "python3.11"),
        (["torchrun", "train.py"], "python3"),
        (["venv/bin/python", "train.py"], "python3"),
        ([], "python3"),
    ],
)
def test_the_interpreter_is_that_of_the_job(command: list[str], wanted: str) -> None:
    assert python_interpreter(command) == wanted


def test_the_compiled_check_runs(tmp_path: Path) -> None:
    """As in a pod: the arguments of the Job, and the library from its copy only."""
    copy_library(tmp_path)
    check = init(objects(CHECKED + "  workers: {replicas: 2}\n"))[1]
    assert check["command"] == ["python", health_check._LIBRARY_DIRECTORY, "health_check"]
    block = AddressBlock()
    running = []
    for index in range(2):
        own = {"JOB_COMPLETION_INDEX": str(index), "POD_IP": block.address(index), "POD_UID": str(index)}
        args = [f"{block.address(0)}:{each.rpartition(':')[2]}" if ".svc:" in each else each for each in check["args"]]
        running.append(
            subprocess.Popen(
                [sys.executable, str(tmp_path), "health_check", *args],
                env={"PATH": os.environ["PATH"], **own},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    printed = [each.communicate(timeout=patience())[0] for each in running]
    block.close()
    assert [each.returncode for each in running] == [0, 0], printed
    assert all("health check: 2 workers passed" in text for text in printed)
