"""Training jobs: what each pod knows of the others, and what the objects say."""

from __future__ import annotations

import json

import pytest

from avactl.kinds.training.commands import with_mpirun, with_torchrun
from avactl.kinds.training.followers import EVALUATOR_GRACE
from avactl.program.lowering.pods import MISSING_REVISION
from avactl.program.registry import get_kind
from tests.kinds.on_base import compile_spec, objects, problems
from tests.kinds.training import HEAD, PLATFORM, PS, container, env, host, job, pod


def test_a_single_job_is_one_pod_and_nothing_else() -> None:
    found = objects(HEAD)
    assert list(found) == [("Job", "net-worker")]
    assert job(found)["spec"]["completions"] == 1
    assert container(found)["command"] == ["python", "train.py"]
    # GPU machines must not hand their GPUs to a job that asked for none.
    assert env(found)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_torchrun_gets_ranks_by_index_and_the_first_pod_as_master() -> None:
    found = objects(HEAD + "  strategy: allReduce\n  workers: {replicas: 3, gpus: 8}\n")
    assert container(found)["command"] == ["python", "-m", "torch.distributed.run", "train.py"]
    seen = env(found, index=2)
    assert seen["PET_NODE_RANK"] == seen["NODE_RANK"] == "2"
    assert (seen["PET_NNODES"], seen["PET_NPROC_PER_NODE"], seen["WORLD_SIZE"]) == ("3", "8", "24")
    assert seen["PET_MASTER_ADDR"] == seen["MASTER_ADDR"] == host("worker", 0)
    service = found["Service", "net-rendezvous"]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"]
    assert service["ports"][0]["port"] == int(seen["MASTER_PORT"])
    # A pod has its DNS name only where subdomain and selector agree with the Service.
    assert pod(found)["spec"]["subdomain"] == "net-rendezvous"
    assert service["selector"].items() <= pod(found)["metadata"]["labels"].items()


def test_a_gang_of_one_resolves_its_own_name() -> None:
    found = objects(HEAD + "  strategy: allReduce\n  checkpoint: {volume: 1Gi}\n")
    select = found["Service", "net-rendezvous"]["spec"]["selector"]
    assert select.items() <= pod(found)["metadata"]["labels"].items()
    assert ("PodDisruptionBudget", "net") not in found


def test_each_worker_of_tensorflow_finds_itself_in_the_cluster() -> None:
    found = objects(
        HEAD + "  framework: tensorflow\n  strategy: allReduce\n  workers: {replicas: 3}\n  evaluator: {}\n"
    )
    configs = [json.loads(env(found, index=index)["TF_CONFIG"]) for index in range(3)]
    for index, config in enumerate(configs):
        own = config["cluster"][config["task"]["type"]][config["task"]["index"]]
        assert own == f"{host('worker', index)}:2222"
    evaluator = json.loads(env(found, "evaluator")["TF_CONFIG"])
    assert evaluator["task"] == {"type": "evaluator", "index": 0}
    assert evaluator["cluster"] == configs[0]["cluster"]
    assert "evaluator" not in evaluator["cluster"]
    assert container(found)["command"] == ["python", "train.py"]


def test_the_first_worker_of_a_parameter_server_is_tensorflows_chief() -> None:
    found = objects(PS + "  framework: tensorflow\n  workers: {replicas: 4, gpus: 1}\n")
    pods = [("chief", 0), *(("worker", index) for index in range(3)), *(("server", index) for index in range(2))]
    seen = []
    for role, index in pods:
        config = json.loads(env(found, role, index)["TF_CONFIG"])
        address = config["cluster"][config["task"]["type"]][config["task"]["index"]]
        assert address == f"{host(role, index)}:2222"
        seen.append(address)
    assert len(set(seen)) == 6 == sum(len(addresses) for addresses in config["cluster"].values())
    assert [job(found, role)["spec"]["completions"] for role in ("chief", "worker", "server")] == [1, 3, 2]
    # Every pod that the gang needs, and the chief has the GPUs of a worker.
    assert pod(found, "server")["metadata"]["annotations"]["avactl.dev/gang-size"] == "6"
    assert container(found, "chief")["resources"] == container(found)["resources"]


def test_pods_of_mxnet_meet_at_the_scheduler() -> None:
    found = objects(PS + "  framework: mxnet\n  consistency: asp\n  workers: {replicas: 4}\n")
    for role in ("worker", "server", "scheduler"):
        seen = env(found, role)
        assert seen["DMLC_ROLE"] == role
        assert seen["DMLC_PS_ROOT_URI"] == host("scheduler", 0)
        assert (seen["DMLC_NUM_WORKER"], seen["DMLC_NUM_SERVER"]) == ("4", "2")
        assert seen["AVACTL_KVSTORE"] == "dist_async"
    assert int(seen["DMLC_PS_ROOT_PORT"]) == found["Service", "net-rendezvous"]["spec"]["ports"][0]["port"]


def test_other_code_gets_the_addresses_themselves() -> None:
    found = objects(PS + "  framework: custom\n  consistency: ssp\n  staleness: 3\n  workers: {replicas: 2}\n")
    seen = env(found, "server", 1)
    assert seen["AVACTL_WORKER_HOSTS"] == f"{host('worker', 0)},{host('worker', 1)}"
    assert seen["AVACTL_SERVER_HOSTS"] == f"{host('server', 0)},{host('server', 1)}"
    assert (seen["AVACTL_ROLE"], seen["AVACTL_INDEX"]) == ("server", "1")
    assert (seen["AVACTL_CONSISTENCY"], seen["AVACTL_STALENESS"]) == ("ssp", "3")


def test_what_serves_ends_with_those_it_serves_and_user_code_has_no_token() -> None:
    found = objects(PS + "  framework: mxnet\n  workers: {replicas: 2}\n")
    spec = pod(found, "server")["spec"]
    (watcher,) = spec["containers"]
    assert container(found, "server")["restartPolicy"] == "Always"  # a sidecar: it does not keep the pod alive
    assert {entry["name"]: entry.get("value") for entry in watcher["env"]}["LEADERS"] == "net-worker"
    assert spec["automountServiceAccountToken"] is False
    holders = [
        each["name"]
        for each in (*spec["initContainers"], *spec["containers"])
        if any(mount["name"] == "token" for mount in each.get("volumeMounts", ()))
    ]
    assert holders == [watcher["name"]]
    assert found["Role", "net-follower"]["rules"] == [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "patch"], "resourceNames": ["net-worker"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    ]
    assert pod(found)["spec"]["serviceAccountName"] == "avactl-run"
    actions = {rule["action"] for rule in job(found, "server")["spec"]["podFailurePolicy"]["rules"]}
    assert actions == {"FailJob", "Ignore"}


def test_mpi_needs_neither_ssh_nor_the_right_to_run_things_in_pods() -> None:
    found = objects(HEAD + "  strategy: mpi\n  framework: tensorflow\n  workers: {replicas: 2, gpus: 4}\n")
    hostfile = found["ConfigMap", "net-rendezvous"]["data"]["hostfile"]
    assert hostfile == f"{host('worker', 0)} slots=4\n{host('worker', 1)} slots=4\n"
    assert container(found, "launcher")["command"] == ["mpirun", "python", "train.py"]
    assert "TF_CONFIG" not in env(found)
    for name, verbs in (("net-launcher", ["get", "patch"]), ("net-follower", ["get"])):
        rules = [rule for rule in found["Role", name]["rules"] if rule["resources"] == ["configmaps"]]
        assert rules == [
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs, "resourceNames": ["net-launch"]}
        ]
    assert "data" not in found["ConfigMap", "net-launch"]  # the launcher's, so nobody puts it back


def test_elastic_workers_come_and_go() -> None:
    found = objects(
        HEAD + "  strategy: elastic\n  workers: {min: 2, max: 5, gpus: 2}\n  checkpoint: {path: s3://b/x}\n"
    )
    seen = env(found, index=3)
    # torchrun starts two processes of one pod; they meet those of others at the job master.
    torchrun = {name: value for name, value in seen.items() if name.startswith("PET_")}
    assert torchrun == {"PET_STANDALONE": "1", "PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "3"}
    assert (seen["AVACTL_WORKER"], seen["AVACTL_WORKER_RANGE"]) == ("worker-3", "2:5")
    spec = job(found)["spec"]
    assert (spec["parallelism"], spec["maxFailedIndexes"]) == (5, 3)
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert pod(found)["metadata"]["annotations"]["avactl.dev/gang-size"] == "3"  # with the job master
    assert found["PodDisruptionBudget", "net"]["spec"]["minAvailable"] == 3
    assert seen["AVACTL_MASTER"] == f"{host('master', 0)}:29600"


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "custom"])
def test_one_process_of_an_elastic_worker_needs_no_launcher(framework: str) -> None:
    spec = f"  framework: {framework}\n  strategy: elastic\n  workers: {{min: 2, max: 5}}\n"
    found = objects(HEAD + spec)
    assert container(found)["command"] == ["python", "train.py"]
    seen = env(found, index=0)
    assert not [name for name in seen if name.startswith("PET_")]
    assert seen["AVACTL_WORKER_RANGE"] == "2:5"


def test_the_job_master_of_an_elastic_job() -> None:
    found = objects(HEAD + "  framework: custom\n  strategy: elastic\n  workers: {min: 2, max: 5}\n")
    master = container(found, "master")
    assert master["image"].startswith("registry.example.com/avactl@")
    assert master["command"] == ["avactl", "elastic", "master"]
    assert "vision/net-master" in master["args"]
    # It restarts in place, with its journal and with the token that none of the users' code has.
    assert master["restartPolicy"] == "Always"
    mounts = {each["name"]: each["mountPath"] for each in master["volumeMounts"]}
    assert mounts["state"] == "/var/lib/avactl"
    assert "token" in mounts
    assert "token" not in {each["name"] for each in container(found).get("volumeMounts", ())}
    (written,) = (rule for rule in found["Role", "net-follower"]["rules"] if rule["resources"] == ["configmaps"])
    assert (written["resourceNames"], written["verbs"]) == (["net-master"], ["get", "patch"])
    assert "binaryData" not in found["ConfigMap", "net-master"]
    seen = env(found, index=1)
    assert seen["AVACTL_WORKER"] == "worker-1"
    assert seen["AVACTL_MASTER"] == f"{host('master', 0)}:29600"
    assert not [name for name in seen if name.startswith("PET_")]


def test_the_size_of_the_job_master() -> None:
    found = objects(
        HEAD + "  strategy: elastic\n  workers: {min: 2, max: 5}\n  master: {cpu: 2, memory: 4Gi}\n"
        "  checkpoint: {volume: 1Gi}\n"
    )
    assert container(found, "master")["resources"]["requests"] == {"cpu": "2", "memory": "4Gi"}


def test_the_job_master_counts_the_first_gradients() -> None:
    settings = "  framework: custom\n  workers: {replicas: 4}\n  workerGroups: [{name: old}]\n"
    found = objects(PS + settings + "  backupWorkers: 2\n")
    args = container(found, "master")["args"]
    assert args[args.index("--gradients") + 1] == "3"
    assert "--staleness" not in args
    seen = env(found, index=2)
    assert (seen["AVACTL_CONSISTENCY"], seen["AVACTL_BACKUP_WORKERS"]) == ("bsp", "2")
    assert seen["AVACTL_MASTER"] == f"{host('master', 0)}:29600"
    assert ("Job", "net-master") not in objects(PS + settings + "  backupWorkers: 0\n")


def test_a_gang_is_restarted_as_often_as_retries_say() -> None:
    found = objects(HEAD + "  strategy: allReduce\n  workers: {replicas: 4}\n  retries: 7\n")
    spec = job(found)["spec"]
    # All pods of a gang fail together: counted for each index, four failures are one.
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (7, 0)
    assert spec["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert found["PodDisruptionBudget", "net"]["spec"]["minAvailable"] == 4
    assert ("PodDisruptionBudget", "net") not in objects(HEAD)
    assert objects(HEAD + "  preemptible: false\n")["PodDisruptionBudget", "net"]["spec"]["minAvailable"] == 1


def test_a_job_fails_at_once_if_its_commit_does_not_exist() -> None:
    found = objects(PS + "  framework: mxnet\n  code: {git: {url: 'https://git.example.com/a.git', ref: v1}}\n")
    for role in ("worker", "server", "scheduler"):
        first = job(found, role)["spec"]["podFailurePolicy"]["rules"][0]
        assert first == {
            "action": "FailJob",
            "onExitCodes": {"containerName": "code", "operator": "In", "values": [MISSING_REVISION]},
        }
        assert "code" in [each["name"] for each in pod(found, role)["spec"]["initContainers"]]


@pytest.mark.parametrize(("ref", "known"), [("main", 1), ("v1.0", 1), ("4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d", 0)])
def test_only_a_commit_is_a_fixed_version_of_code(ref: str, known: int) -> None:
    text = f"  code: {{git: {{url: 'https://git.example.com/a.git', ref: {ref}}}}}\n"
    (item,) = compile_spec(HEAD + text).program.of("TrainingJob")
    workload = get_kind("TrainingJob").workload
    assert workload is not None
    assert [each.path[-1] for each in workload.unpinned(item)] == ["ref"] * known


def test_code_from_a_workspace_is_read_only() -> None:
    notebook = (
        "apiVersion: avactl.dev/v1\nkind: Workspace\nmetadata: {name: li-wei, team: vision}\n"
        "spec: {user: li.wei, image: jupyter, sharedHome: true, runAsUser: 2000}\n---\n"
    )
    code = "  runAsUser: 2000\n  code: {workspace: {name: li-wei, path: net, home: /notebook}}\n"
    found = objects(notebook + PS.lstrip() + "  framework: mxnet\n" + code)
    assert found["PersistentVolumeClaim", "li-wei-home"]["spec"]["accessModes"] == ["ReadWriteMany"]
    for role in ("worker", "server", "scheduler"):
        main, (copier, *_) = container(found, role), pod(found, role)["spec"]["initContainers"]
        assert main["workingDir"] == "/workspace/code"
        mounts = {each["name"]: each for each in main["volumeMounts"]}
        assert mounts["code"]["readOnly"]
        assert mounts["workspace"] == {"name": "workspace", "mountPath": "/notebook", "readOnly": True}
        assert copier["name"] == "code"
        assert not any(each.get("readOnly") for each in copier["volumeMounts"])


def test_the_job_master_has_no_code() -> None:
    notebook = (
        "apiVersion: avactl.dev/v1\nkind: Workspace\nmetadata: {name: li-wei, team: vision}\n"
        "spec: {user: li.wei, image: jupyter, runAsUser: 2000}\n---\n"
    )
    code = "  runAsUser: 2000\n  code: {workspace: {name: li-wei}}\n"
    elastic = "  strategy: elastic\n  framework: custom\n  workers: {min: 1, max: 1}\n"
    # One pod takes the code, so its home may be mounted by one node; that is an error otherwise.
    found = objects(notebook + HEAD.lstrip() + elastic + code)
    assert "code" not in [each["name"] for each in pod(found, "master")["spec"].get("initContainers", ())]
    assert [each["name"] for each in pod(found, "worker")["spec"]["initContainers"]] == ["code"]


def test_all_pods_have_the_token_of_parameter_servers() -> None:
    """It is the one setting of avactl's that a spec gives as a variable, because it is a secret."""
    token = "  env: {AVACTL_PS_TOKEN: {secret: {name: ps, key: token}}}\n"
    servers = "  servers: {replicas: 2, command: [python, -m, avactl_worker.ps]}\n"
    found = objects(HEAD + token + "  framework: custom\n  strategy: parameterServer\n" + servers)
    for role in ("worker", "server"):
        spec = pod(found, role)["spec"]
        containers = [*spec["containers"], *spec.get("initContainers", ())]  # a server is beside what ends it
        variables = [entry for each in containers if each["name"] == role for entry in each["env"]]
        (entry,) = [each for each in variables if each["name"] == "AVACTL_PS_TOKEN"]
        assert entry["valueFrom"]["secretKeyRef"]["name"] == "ps"


def test_a_gang_says_of_which_level_one_domain_must_hold_it() -> None:
    spec = "  framework: mxnet\n  strategy: parameterServer\n  servers: {replicas: 2}\n"
    found = objects(HEAD + spec + "  workers: {replicas: 4, within: topology.kubernetes.io/rack}\n")
    for role in ("worker", "server", "scheduler"):
        assert pod(found, role)["metadata"]["annotations"]["avactl.dev/within"] == "topology.kubernetes.io/rack"


def test_pods_that_save_themselves_say_how_often() -> None:
    saved = HEAD + "  checkpoint: {path: 's3://vision/ckpt', every: 15m}\n"
    spec = "  framework: tensorflow\n  strategy: parameterServer\n  workers: {replicas: 2}\n  servers: {replicas: 1}\n"
    found = {
        key[1]: body["spec"]["template"]["metadata"]["annotations"].get("avactl.dev/checkpoint-every")
        for key, body in objects(saved + spec).items()
        if key[0] == "Job"
    }
    # Servers hold parameters that nobody has saved when they are stopped.
    assert found == {"net-chief": "900", "net-worker": "900", "net-server": None}


def run(text: str) -> str:
    found = objects(text)
    digests = {
        notes["avactl.dev/run"]
        for (kind_, _), body in found.items()
        if kind_ == "Job"
        for notes in (body["metadata"]["annotations"], body["spec"]["template"]["metadata"]["annotations"])
    }
    (digest,) = digests
    return str(digest)


def test_a_new_run_is_what_changes_the_pods_of_any_role() -> None:
    text = PS + "  framework: mxnet\n  workers: {replicas: %d}\n  timeout: %s\n"
    assert run(text % (2, "1h")) == run(text % (2, "2h") + "  ttl: 1d\n  suspended: true\n")
    assert run(text % (2, "1h")) != run(text % (3, "1h"))
    assert run(text % (2, "1h")) != run((text % (2, "1h")).replace("cpu: 4", "cpu: 5"))


def test_names_of_jobs_do_not_follow_their_content() -> None:
    one = objects(HEAD + "  strategy: allReduce\n  workers: {replicas: 2}\n")
    assert one.keys() == objects(HEAD + "  strategy: allReduce\n  workers: {replicas: 9}\n  retries: 1\n").keys()


def test_the_scheduler_counts_the_time_that_a_job_runs() -> None:
    found = objects(PLATFORM + HEAD + "  workers: {gpus: 1, gpu: V100}\n  timeout: 90m\n", base=False)
    spec = job(found)["spec"]
    assert "activeDeadlineSeconds" not in spec  # it would count from the creation of the job
    assert pod(found)["metadata"]["annotations"]["avactl.dev/timeout"] == "5400"
    # The kubelet ends the pod in any case, after the scheduler has said why.
    assert 5400 < pod(found)["spec"]["activeDeadlineSeconds"] <= 5460
    first = spec["podFailurePolicy"]["rules"][0]
    assert (first["action"], first["onPodConditions"][0]["type"]) == ("FailJob", "avactl.dev/TimedOut")


def test_followers_do_not_outlive_the_deadline_of_their_leader() -> None:
    found = objects(PS + "  framework: mxnet\n  workers: {replicas: 2}\n  timeout: 90m\n  ttl: 1h\n  suspended: true\n")
    assert job(found)["spec"]["activeDeadlineSeconds"] == 5400
    # Beyond it, so that they end by themselves, with the last checkpoint evaluated.
    assert job(found, "server")["spec"]["activeDeadlineSeconds"] > 5400 + EVALUATOR_GRACE
    assert "activeDeadlineSeconds" not in job(objects(PS + "  workers: {replicas: 2}\n"), "server")["spec"]
    for role in ("worker", "server", "scheduler"):
        assert job(found, role)["spec"]["ttlSecondsAfterFinished"] == 3600
        assert job(found, role)["spec"]["suspend"] is True


def test_an_engine_that_follows_the_repository_never_sees_a_job_vanish() -> None:
    text = PLATFORM.replace("spec:\n  daemons", "spec:\n  defaultJobTtl: 1d\n  reconcile: {mode: flux}\n  daemons")
    assert "ttlSecondsAfterFinished" not in job(objects(text + HEAD, base=False))["spec"]
    pulumi = objects(text.replace("flux", "pulumi") + HEAD, base=False)
    assert job(pulumi)["spec"]["ttlSecondsAfterFinished"] == 86400


def test_checkpoints_in_a_bucket_come_with_its_credentials_by_reference() -> None:
    text = HEAD + "  checkpoint: {path: s3://results/vision/ckpt, every: 15m, keep: 5}\n  env: {LR: '0.1'}\n"
    found = objects(PLATFORM + text, base=False)
    seen = env(found)
    assert seen["AVACTL_CHECKPOINT_PATH"] == "s3://results/vision/ckpt"
    assert (seen["AVACTL_CHECKPOINT_EVERY"], seen["AVACTL_CHECKPOINT_KEEP"]) == ("900", "5")
    secret = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in container(found)["env"] if "secretKeyRef" in str(e)}
    assert secret["AWS_SECRET_ACCESS_KEY"] == {"name": "results-s3", "key": "secretAccessKey", "optional": True}
    assert seen["LR"] == "0.1"


@pytest.mark.parametrize(("policy", "kept"), [("retain", True), ("delete", False)])
def test_a_checkpoint_volume_is_kept_unless_the_spec_says_otherwise(policy: str, kept: bool) -> None:
    text = HEAD + "  strategy: allReduce\n  workers: {replicas: %d}\n"
    volume = f"  checkpoint: {{volume: 50Gi, deletionPolicy: {policy}}}\n"
    claims = [m for m in compile_spec(text % 2 + volume).manifests if m.name == "net-checkpoint"]
    assert [claim.holds_data for claim in claims] == [kept]
    assert claims[0].body["spec"]["accessModes"] == ["ReadWriteMany"]
    alone = objects(text % 1 + volume)["PersistentVolumeClaim", "net-checkpoint"]
    assert alone["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_tensorboard_reads_what_the_workers_write() -> None:
    found = objects(HEAD + "  tensorboard: {logdir: /logs, storage: 5Gi}\n  logVolume: /workspace/runs\n")
    mounts = {mount["name"]: mount["mountPath"] for mount in container(found)["volumeMounts"]}
    assert mounts["logs"] == "/workspace/runs"
    board = found["Deployment", "net-tensorboard"]["spec"]["template"]["spec"]
    assert {mount["name"]: mount["mountPath"] for mount in board["containers"][0]["volumeMounts"]}["logs"] == "/logs"
    assert board["volumes"][0]["persistentVolumeClaim"]["claimName"] == "net-logs"
    # The board is no pod of the job: the rendezvous and the budget must not count it.
    select = found["Service", "net-tensorboard"]["spec"]["selector"]
    assert not select.items() <= pod(found)["metadata"]["labels"].items()
    in_store = objects(HEAD + "  tensorboard: {logdir: s3://results/logs}\n")
    assert ("PersistentVolumeClaim", "net-logs") not in in_store


def test_a_users_variable_takes_the_place_of_ours() -> None:
    found = objects(HEAD + "  strategy: allReduce\n  workers: {replicas: 2}\n  env: {MASTER_PORT: '1234'}\n")
    named = [entry for entry in container(found)["env"] if entry["name"] == "MASTER_PORT"]
    assert named == [{"name": "MASTER_PORT", "value": "1234"}]


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://git.example.com/a.git", "credential.https://git.example.com.helper"),
        ("https://git.example.com:8443/a.git", "credential.https://git.example.com:8443.helper"),
        ("git@git.example.com:a.git", None),
    ],
)
def test_the_password_of_the_code_is_for_its_own_host(url: str, key: str | None) -> None:
    """Not for where that host redirects, nor for the server that `.lfsconfig` of a contributor names."""
    found = objects(f"{PS}  framework: mxnet\n  code: {{git: {{url: '{url}', ref: v1, secret: deploy}}}}\n")
    settings = {each["name"]: each["value"] for each in pod(found)["spec"]["initContainers"][0]["env"]}
    assert settings.get("GIT_CONFIG_KEY_1") == key
    assert "credential.helper" not in settings.values()


def test_code_is_fetched_into_the_working_directory() -> None:
    git = "  code: {git: {url: 'https://git.example.com/a.git', ref: v1, path: src, secret: deploy}}\n"
    found = objects(PS + "  framework: mxnet\n  workers: {replicas: 2}\n" + git)
    for role in ("worker", "server"):
        assert container(found, role)["workingDir"] == "/workspace/code/src"
        first = pod(found, role)["spec"]["initContainers"][0]
        assert first["name"] == "code"  # before the server, which is a sidecar and never ends


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", "python -m torch.distributed.run train.py --lr 1"),
        ("python3.11 -u -X dev train.py", "python3.11 -u -X dev -m torch.distributed.run train.py"),
        ("/opt/conda/bin/python -m pkg.train -x", "/opt/conda/bin/python -m torch.distributed.run -m pkg.train -x"),
        ("python -m torch.distributed.run train.py", None),
        ("python -m accelerate.commands.launch train.py", None),
        ("python -c pass", None),
        ("python", None),
        ("torchrun train.py", None),
        ("accelerate launch train.py", None),
        ("deepspeed train.py", None),
        ("bash run.sh", None),
    ],
)
def test_torchrun_stands_in_front_of_python_only(command: str, expected: str | None) -> None:
    assert " ".join(with_torchrun(command.split())) == (expected or command)


def test_mpirun_stands_in_front_of_python_only() -> None:
    assert with_mpirun(["python", "-u", "a.py"]) == ["mpirun", "python", "-u", "a.py"]
    assert with_mpirun(["horovodrun", "-np", "4", "python", "a.py"])[0] == "horovodrun"


def test_facts_name_what_a_reviewer_looks_at() -> None:
    program = compile_spec(
        HEAD + "  strategy: allReduce\n  workers: {replicas: 2, gpus: 8}\n  datasets: [{name: imagenet}]\n"
    ).program
    facts = get_kind("TrainingJob").facts(program.get("TrainingJob", "net", "vision"), program)
    assert (facts["workers"], facts["GPUs"], facts["datasets"]) == (2, "16 V100", "imagenet v1")


def test_pods_run_as_the_user_of_the_spec() -> None:
    text = HEAD + "  strategy: mpi\n  workers: {replicas: 2}\n  runAsUser: 2000\n  runAsGroup: 3000\n"
    found = objects(text)
    security = pod(found)["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (2000, 3000, 3000)
    passwd = found["ConfigMap", "net-rendezvous"]["data"]["passwd"].split(":")
    assert (passwd[2:4], passwd[5]) == (["2000", "3000"], env(found, "launcher")["HOME"])
    assert [problem.code for problem in problems(HEAD + "  runAsUser: 0\n")] == ["pod-security"]


def test_servers_save_checkpoints_and_stay_while_their_leader_saves() -> None:
    text = PS + "  framework: tensorflow\n  workers: {replicas: 2}\n  checkpoint: {volume: 10Gi}\n"
    found = objects(text)
    mounts = {mount["mountPath"] for mount in container(found, "server")["volumeMounts"]}
    assert env(found, "server")["AVACTL_CHECKPOINT_DIR"] in mounts
    (watcher,) = pod(found, "server")["spec"]["containers"]
    linger = int(next(entry["value"] for entry in watcher["env"] if entry["name"] == "LINGER"))
    grace = pod(found, "server")["spec"]["terminationGracePeriodSeconds"]
    assert 0 < linger < grace == pod(found, "chief")["spec"]["terminationGracePeriodSeconds"]
    assert found["PersistentVolumeClaim", "net-checkpoint"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_programs_are_the_first_process_only_beside_a_token() -> None:
    """The first process ignores SIGTERM unless it handles it, and could not see the token of another container."""
    elastic = objects(HEAD + "  strategy: elastic\n  framework: custom\n  workers: {min: 1, max: 2}\n")
    mpi = objects(HEAD + "  strategy: mpi\n  workers: {replicas: 2}\n")
    groups = objects(HEAD + "  strategy: allReduce\n  workers: {replicas: 2}\n  workerGroups: [{name: old}]\n")
    for found in (elastic, mpi, groups):
        for role in ("worker", "worker-old", "master", "launcher"):
            if ("Job", f"net-{role}") not in found:
                continue
            spec = pod(found, role)["spec"]
            tokens = [volume for volume in spec["volumes"] if "serviceAccountToken" in str(volume)]
            assert spec.get("shareProcessNamespace", False) != bool(tokens), role
