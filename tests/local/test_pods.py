"""Descriptions of processes: the environment of the compiled pods, with local addresses, ports and directories."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from avactl.compiler import Compilation, compile_tree
from avactl.spec.repository.tree import DirTree
from avactl.workbench.local.addresses import AddressBlock, path_translator
from avactl.workbench.local.environment import resolve
from avactl.workbench.local.errors import LocalRunError
from avactl.workbench.local.pods import LocalJob, LocalPlace, LocalPod, describe
from avactl.workbench.local.selection import select
from tests.local.running import EXAMPLE, copy_example, local_run, losses, plain_losses, rewrite


@cache
def compiled(example: str) -> Compilation:
    return compile_tree(DirTree(EXAMPLE.parent / example))


@pytest.fixture
def block() -> Iterator[AddressBlock]:
    block = AddressBlock()
    yield block
    block.close()


@pytest.fixture
def job(tmp_path: Path, block: AddressBlock) -> Any:
    """`job(name, workers=None, example="training", given={…}, **caller)`: a job of an example on this machine."""

    def described(
        name: str,
        workers: int | None = None,
        example: str = "training",
        given: dict[str, str] | None = None,
        **own: str,
    ) -> LocalJob:
        caller = {"PATH": "/usr/bin:/bin", "CALLER": "1", **own}
        selected = select(compiled(example), (), name, workers)
        place = LocalPlace(EXAMPLE, tmp_path / "pods", tmp_path / "volumes", given or {}, caller)
        return describe(selected.item, selected.hooks.run(selected.item), selected.manifests, place, block)

    return described


@pytest.fixture(autouse=True)
def any_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: name)
    monkeypatch.setattr("avactl.workbench.local.pods.has_module", lambda *_: True)


def by_label(job: LocalJob) -> dict[str, LocalPod]:
    return {pod.label: pod for pod in job.pods}


def test_every_variable_of_a_pod(job: Any, block: AddressBlock) -> None:
    pod = by_label(job("linear-servers"))["worker-1"]
    n = block.number
    workers, servers = (",".join(f"127.{n}.0.{last}" for last in range(*range_)) for range_ in ((1, 4), (4, 6)))
    # Another port than 29500, if that is in use.
    assert pod.own["AVACTL_PORT"].isdigit()
    assert {key: value for key, value in pod.own.items() if key != "AVACTL_PORT"} == {
        "HOSTNAME": "linear-servers-worker-1",
        "HOME": str(Path.home()),
        "JOB_COMPLETION_INDEX": "1",
        "AVACTL_JOB": "linear-servers",
        "AVACTL_ROLE": "worker",
        "AVACTL_INDEX": "1",
        "AVACTL_CONSISTENCY": "bsp",
        "AVACTL_WORKERS": "3",
        "AVACTL_SERVERS": "2",
        "AVACTL_WORKER_HOSTS": workers,
        "AVACTL_SERVER_HOSTS": servers,
        "NVIDIA_VISIBLE_DEVICES": "void",
    }
    assert pod.env["CALLER"] == "1"
    assert pod.argv == ["python", "scripts/parameter_server.py"]
    assert pod.directory == str(EXAMPLE)


def test_roles_and_their_ends(job: Any) -> None:
    pods = by_label(job("linear-tensorflow"))
    assert {label: pod.leads for label, pod in pods.items()} == {
        "chief-0": True,
        "worker-0": False,
        "worker-1": False,
        "server-0": False,
    }
    assert {label: (pod.grace, pod.stops_last) for label, pod in pods.items()} == {
        "chief-0": (120, False),
        "worker-0": (30, False),
        "worker-1": (30, False),
        "server-0": (120, True),
    }


def test_servers_that_listen_on_all_addresses_have_ports_of_their_own(job: Any) -> None:
    pods = by_label(job("linear-tensorflow"))
    clusters = {json.dumps(json.loads(pod.own["TF_CONFIG"])["cluster"], sort_keys=True) for pod in pods.values()}
    (cluster,) = map(json.loads, clusters)
    addresses = [address.split(":") for role in cluster.values() for address in role]
    assert {role: len(those) for role, those in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}
    assert len({host for host, _ in addresses}) == len({port for _, port in addresses}) == 4
    assert json.loads(pods["worker-1"].own["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}


def test_torchrun_static(job: Any, block: AddressBlock) -> None:
    pods = by_label(job("linear-pytorch", 3))
    own = pods["worker-2"].own
    assert own["PET_MASTER_ADDR"] == own["MASTER_ADDR"] == f"127.{block.number}.0.1"
    assert own["PET_MASTER_PORT"] == own["MASTER_PORT"]
    assert (own["PET_NNODES"], own["PET_NODE_RANK"], own["WORLD_SIZE"]) == ("3", "2", "3")
    assert pods["worker-2"].argv == ["python", "-m", "torch.distributed.run", "scripts/ddp.py"]


def test_elastic_workers_find_the_job_master(job: Any, block: AddressBlock) -> None:
    pods = by_label(job("linear-elastic", 3))
    assert list(pods) == ["worker-0", "worker-1", "worker-2", "master-0"]
    own = pods["worker-1"].own
    assert (own["AVACTL_WORKER"], own["AVACTL_WORKER_RANGE"]) == ("worker-1", "2:4")
    assert own["AVACTL_MASTER"] == f"127.{block.number}.0.4:29600"
    assert pods["master-0"].argv[3:5] == ["--listen", f"127.{block.number}.0.4:29600"]


def test_mpi(job: Any, tmp_path: Path) -> None:
    described = job("linear-mpi", 3)
    (launcher,) = described.pods
    assert launcher.argv == ["mpirun", "python", "scripts/mpi.py"]
    hostfile = Path(launcher.own["OMPI_MCA_orte_default_hostfile"])
    assert launcher.files[hostfile][0] == "localhost slots=6\n"
    assert Path(launcher.own["OMPI_MCA_plm_rsh_agent"]) in launcher.files
    assert hostfile.is_relative_to(tmp_path)
    assert described.notes[0] == "3 workers not started: mpirun starts its ranks on this machine"


def test_volumes_are_directories(job: Any, tmp_path: Path) -> None:
    (pod,) = job("linear").pods
    volume = tmp_path / "volumes" / "linear-checkpoint"
    assert pod.own["AVACTL_CHECKPOINT_DIR"] == pod.own["AVACTL_CHECKPOINT_PATH"] == str(volume)
    assert volume in pod.directories
    (pod,) = job("linear", given={"/checkpoint": "/mine"}).pods
    assert pod.own["AVACTL_CHECKPOINT_DIR"] == "/mine"


JOBS = [
    (example, f"{item.team}/{item.spec_name}")
    for example in ("ava", "modern", "quickstart")
    for item in compiled(example).program.of("TrainingJob")
]


@pytest.mark.parametrize(("example", "name"), JOBS)
def test_no_name_of_the_cluster_is_left(job: Any, example: str, name: str) -> None:
    """All jobs of the other examples, with the one Secret that they need."""
    described: LocalJob = job(name, example=example, WANDB_API_KEY="1")
    texts = [text for pod in described.pods for text in (*pod.own.values(), *pod.argv)]
    texts += [text for pod in described.pods for text, _ in pod.files.values()]
    assert [text for text in texts if ".svc" in text or re.search(r"(?<![\w/.])/(data|checkpoint|logs)\b", text)] == []


def test_ps_lite(job: Any, block: AddressBlock) -> None:
    pods = by_label(job("students/cifar-bsp", example="ava"))
    scheduler, server = pods["scheduler-0"].own, pods["server-1"].own
    assert server["DMLC_PS_ROOT_URI"] == scheduler["DMLC_NODE_HOST"] == f"127.{block.number}.0.7"
    assert server["DMLC_NODE_HOST"] == f"127.{block.number}.0.6"
    assert (server["DMLC_ROLE"], server["DMLC_NUM_WORKER"], server["DMLC_NUM_SERVER"]) == ("server", "4", "2")
    # From a ConfigMap of the team.
    assert pods["server-1"].own.get("AVACTL_BUCKET_HOMEWORK") == "s3://ava-results/students"


def test_runs_have_addresses_of_their_own(block: AddressBlock) -> None:
    other = AddressBlock()
    try:
        assert other.address(0) != block.address(0)
        assert other.own_port() != block.own_port()
    finally:
        other.close()


def variables(entries: list[dict[str, Any]], **more: Any) -> dict[str, str]:
    fields = {"metadata": {"name": "a-0", "labels": {"x/y": "z"}}, "status": {"podIP": "127.0.1.1"}}
    return resolve({"env": entries, **more}, "a-0", fields, {"map": {"key": "$(A)"}}, {"TOKEN": "$(A)"})


def test_values_from_elsewhere_are_not_expanded() -> None:
    def source(name: str, **ref: Any) -> dict[str, Any]:
        return {"name": name, "valueFrom": ref}

    assert variables(
        [
            {"name": "A", "value": "1"},
            source("MAP", configMapKeyRef={"name": "map", "key": "key"}),
            source("TOKEN", secretKeyRef={"name": "secret", "key": "key"}),
            source("OPTIONAL", secretKeyRef={"name": "secret", "key": "key", "optional": True}),
            source("IP", fieldRef={"fieldPath": "status.podIP"}),
            source("LABEL", fieldRef={"fieldPath": "metadata.labels['x/y']"}),
            source("NONE", fieldRef={"fieldPath": "metadata.annotations['n']"}),
            {"name": "B", "value": "$(IP):$(LATER)"},
            {"name": "LATER", "value": "2"},
        ],
        envFrom=[{"prefix": "P_", "configMapRef": {"name": "map"}}],
    ) == {
        "P_key": "$(A)",
        "A": "1",
        "MAP": "$(A)",
        "TOKEN": "$(A)",
        "IP": "127.0.1.1",
        "LABEL": "z",
        "NONE": "",
        "B": "127.0.1.1:$(LATER)",
        "LATER": "2",
    }
    with pytest.raises(LocalRunError, match="a-0: X is in the ConfigMap other"):
        variables([source("X", configMapKeyRef={"name": "other", "key": "key"})])
    with pytest.raises(LocalRunError, match="a-0: X is from resourceFieldRef"):
        variables([source("X", resourceFieldRef={"resource": "limits.cpu"})])


def test_paths_are_replaced_whole() -> None:
    local = path_translator({"/data": "/run/1", "/data/more": "/run/2", "/": "/run/3"})
    assert local("/data:/data/x,/data/more/y=/database /my/data s3://data /data.old") == (
        "/run/1:/run/1/x,/run/2/y=/database /my/data s3://data /data.old"
    )


def test_code_of_a_workspace_is_the_checkout(tmp_path: Path) -> None:
    training = copy_example(tmp_path)
    notebook = (
        "apiVersion: avactl.dev/v1\nkind: Workspace\nmetadata: {name: notes, team: research}\n"
        "spec: {user: li.wei, image: registry.example.com/jupyter:1}\n"
    )
    (training / "jobs/notes.yaml").write_text(notebook)
    image = "    git: registry.example.com/git@sha256:" + "a" * 64
    platform = training / "platform.yaml"
    platform.write_text(platform.read_text().replace("  images:\n", f"  images:\n{image}\n"))
    rewrite(training, "single", "  workers:", "  code: {workspace: {name: notes, path: linear}}\n  workers:")
    done = local_run(training, "jobs/single.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"code: {training} instead of workspace notes:linear" in done.stdout + done.stderr
    assert losses(done.stdout) == plain_losses()
