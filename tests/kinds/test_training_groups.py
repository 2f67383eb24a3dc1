"""Jobs with several groups of workers and servers: one gang, and positions that go on from group to group."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from avactl.program.registry import get_kind
from tests.kinds.on_base import Objects, compile_spec, objects, problems
from tests.kinds.training import HEAD, container, env, host, job, pod

GROUPS = (
    "  workers: {replicas: 3, gpus: 2, gpu: V100}\n  workerGroups: [{name: slow, replicas: 2, gpus: 4}, {name: cpu}]\n"
)


def run_in_shell(found: Objects, role: str, index: int) -> dict[str, str]:
    """The environment of a pod's program behind the shell of its group."""
    *shell, end = container(found, role)["command"][:4], ["env"]
    seen = env(found, role, index)
    done = subprocess.run([*shell[0], *end], env={**seen, "PATH": os.environ["PATH"]}, capture_output=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.decode().splitlines())


def test_ranks_of_torchrun_go_on_in_further_groups() -> None:
    found = objects(HEAD + "  strategy: allReduce\n" + GROUPS)
    names = ["worker", "worker-slow", "worker-cpu"]
    assert [job(found, name)["spec"]["completions"] for name in names] == [3, 2, 1]
    ranks = [
        run_in_shell(found, name, index)["PET_NODE_RANK"] for name, index in (("worker-slow", 1), ("worker-cpu", 0))
    ]
    assert ranks == ["4", "5"]
    assert env(found, "worker", 2)["PET_NODE_RANK"] == "2"
    for name, each in zip(names, ("2", "4", "1"), strict=True):
        seen = env(found, name)
        assert (seen["PET_NNODES"], seen["WORLD_SIZE"], seen["PET_NPROC_PER_NODE"]) == (
            "6",
            str(3 * 2 + 2 * 4 + 1),
            each,
        )
        assert seen["MASTER_ADDR"] == host("worker", 0)
        assert pod(found, name)["metadata"]["annotations"]["avactl.dev/gang-size"] == "6"
        assert container(found, name)["command"][-4:] == ["python", "-m", "torch.distributed.run", "train.py"]
    assert found["PodDisruptionBudget", "net"]["spec"]["minAvailable"] == 6


def test_tensorflow_and_plain_code_with_groups_of_workers_and_servers() -> None:
    servers = "  serverGroups: [{name: big, replicas: 2, memory: 64Gi}]\n"
    text = HEAD + "  strategy: parameterServer\n  servers: {replicas: 1}\n" + GROUPS + servers
    found = objects(text + "  framework: tensorflow\n")
    for role, type_, index, expected in (
        ("worker-slow", "worker", 0, 2),
        ("worker-cpu", "worker", 0, 4),
        ("server-big", "ps", 1, 2),
    ):
        config = json.loads(run_in_shell(found, role, index)["TF_CONFIG"])
        assert config["task"] == {"index": expected, "type": type_}
        assert config["cluster"][type_][expected] == f"{host(role, index)}:2222"
    assert [len(config["cluster"][type_]) for type_ in ("chief", "worker", "ps")] == [1, 5, 3]
    found = objects(text + "  framework: custom\n")
    seen = run_in_shell(found, "worker-cpu", 0)
    assert (seen["AVACTL_WORKERS"], seen["AVACTL_SERVERS"], seen["AVACTL_INDEX"]) == ("6", "3", "5")
    assert seen["AVACTL_WORKER_HOSTS"].split(",")[5] == host("worker-cpu", 0)
    assert seen["AVACTL_SERVER_HOSTS"].split(",")[1:] == [host("server-big", 0), host("server-big", 1)]
    found = objects(text + "  framework: mxnet\n")
    assert (env(found, "server-big")["DMLC_NUM_WORKER"], env(found, "server-big")["DMLC_NUM_SERVER"]) == ("6", "3")


def test_groups_of_mpi_have_slots_of_their_own_and_keys_for_commands() -> None:
    found = objects(HEAD + "  strategy: mpi\n" + GROUPS)
    lines = found["ConfigMap", "net-rendezvous"]["data"]["hostfile"].splitlines()
    assert [line.split("=")[1] for line in lines] == ["2", "2", "2", "4", "4", "1"]
    assert lines[4].startswith(f"{host('worker-slow', 1)} ")
    watcher = pod(found, "worker-slow")["spec"]["containers"][0]
    keys = [entry["value"] for entry in watcher["env"] if entry["name"] == "KEY"]
    assert keys == ["wslow-$(INDEX)"]


def test_each_mpi_library_has_its_own_form() -> None:
    text = HEAD + "  strategy: mpi\n  slotsPerWorker: 2\n  workers: {replicas: 2}\n  mpi: {implementation: %s}\n"
    first = host("worker", 0)
    for library, line, agent, hosts, command in (
        ("openmpi", f"{first} slots=2", "PRTE_MCA_plm_ssh_agent", "PRTE_MCA_prte_default_hostfile", "mpirun"),
        ("mpich", f"{first}:2", "HYDRA_LAUNCHER_EXEC", "HYDRA_HOST_FILE", "mpiexec.hydra"),
        ("intel", first, "I_MPI_HYDRA_BOOTSTRAP_EXEC", "I_MPI_HYDRA_HOST_FILE", "mpiexec.hydra"),
    ):
        found = objects(text % library)
        seen = env(found, "launcher")
        assert found["ConfigMap", "net-rendezvous"]["data"]["hostfile"].splitlines()[0] == line
        assert (seen[agent], seen[hosts]) == ("/etc/avactl/mpi/agent", "/etc/avactl/mpi/hostfile")
        assert container(found, "launcher")["command"][0] == command
    assert seen["I_MPI_PERHOST"] == "2"


def test_leading_groups_watch_each_other_and_servers_wait_for_all() -> None:
    text = HEAD + "  strategy: parameterServer\n  framework: mxnet\n  servers: {}\n" + GROUPS
    found = objects(text)
    leaders = ["net-worker", "net-worker-slow", "net-worker-cpu"]

    def watches(role: str, name: str) -> list[str]:
        spec = pod(found, role)["spec"]
        (watcher,) = [each for each in (*spec["initContainers"], *spec["containers"]) if each["name"] == name]
        return str({entry["name"]: entry.get("value") for entry in watcher["env"]}["LEADERS"]).split()

    assert watches("server", "follower") == leaders
    assert watches("worker-slow", "partner") == ["net-worker", "net-worker-cpu"]
    assert found["Role", "net-follower"]["rules"][0]["resourceNames"] == leaders
    # The token is the sidecar's, not the program's.
    assert "token" not in str(container(found, "worker-slow"))
    assert pod(found, "worker-slow")["spec"]["serviceAccountName"] == "net-follower"


def test_quota_and_capacity_count_every_group() -> None:
    (item,) = compile_spec(HEAD + "  strategy: allReduce\n" + GROUPS).program.of("TrainingJob")
    workload = get_kind("TrainingJob").workload
    assert workload is not None
    assert [(role.path, role.least) for role in workload.roles(item)] == [
        (("spec", "workers"), 3),
        (("spec", "workerGroups", 0), 2),
        (("spec", "workerGroups", 1), 1),
    ]
    (problem,) = problems(
        HEAD + "  strategy: allReduce\n" + GROUPS.replace("replicas: 2, gpus: 4", "replicas: 5, gpus: 4")
    )
    assert problem.code == "quota-exceeded"
    assert "26 V100" in problem.message


@pytest.mark.parametrize(("parameters", "servers"), [("48Gi", 1), ("49Gi", 2), ("1Ti", 22)])
def test_servers_are_as_many_as_the_parameters_need(parameters: str, servers: int) -> None:
    text = f"  strategy: parameterServer\n  framework: mxnet\n  servers: {{memory: 64Gi, parameters: {parameters}}}\n"
    assert job(objects(HEAD + text), "server")["spec"]["completions"] == servers
