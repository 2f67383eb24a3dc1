"""The scripts that pods run, run for real in a shell."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from avactl.kinds.cache_tier.alluxio import names, shell
from avactl.kinds.training import followers, mpi
from avactl.kinds.training.addressing import INDEX_SCRIPT
from avactl.kinds.training.init_containers import workspace_code
from avactl.program.lowering import pods
from tests.kinds.on_base import objects
from tools.programs import require_programs
from tools.waiting import patience, wait_until

JOB = """
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: net, team: vision}
spec:
  image: train
  code: {git: {url: "https://git.example.com/a.git", ref: v1, secret: deploy}}
"""
SCRIPTS = [
    pods.GIT_SCRIPT,
    pods.FETCH_SCRIPT,
    pods.FETCH_MODEL_SCRIPT,
    pods.listed_script(pods.FETCH_SCRIPT),
    pods.listed_script(pods.FETCH_MODEL_SCRIPT),
    followers.FOLLOW_SCRIPT,
    followers.PARTNER_SCRIPT,
    INDEX_SCRIPT,
    shell.PREFIXES_SCRIPT,
    mpi.AGENT,
    mpi.HYDRA_AGENT,
    mpi.PUBLISH_SCRIPT,
    mpi.WORKER_SCRIPT,
    workspace_code.SNAPSHOT_SCRIPT,
]


@pytest.mark.parametrize("interpreter", ["dash", "bash"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_understood_and_survive_kubernetes(script: str, interpreter: str) -> None:
    require_programs(interpreter)
    subprocess.run([interpreter, "-n", "-c", script], check=True)
    # Kubernetes turns `$$` in commands into `$`, and puts variables into `$(NAME)`.
    assert "$$" not in script


def git(*args: str, cwd: Path) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    names = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *names, *args], cwd=cwd, env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "origin"
    path.mkdir()
    git("init", "-q", cwd=path)
    for text in ("one", "two"):
        (path / "train.py").write_text(text)
        git("add", "train.py", cwd=path)
        git("commit", "-q", "-m", text, cwd=path)
    git("tag", "v2", cwd=path)
    return path


def fetch(repository: Path, target: Path, ref: str) -> subprocess.CompletedProcess[str]:
    """Run the init container's script with its own environment, on a repository of this machine."""
    container = objects(JOB)["Job", "net-worker"]["spec"]["template"]["spec"]["initContainers"][0]
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    env |= {"URL": str(repository), "REF": ref, "TARGET": str(target), "PATH": os.environ["PATH"]}
    command = [word.replace(pods.TERMINATION_LOG, f"{target}.log") for word in container["command"]]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_code_is_fetched_by_tag_branch_and_any_commit(repository: Path, tmp_path: Path) -> None:
    first = git("rev-parse", "main~1", cwd=repository)
    for ref, text in (("v2", "two"), ("main", "two"), (first, "one")):
        target, log = tmp_path / ref, tmp_path / f"{ref}.log"
        target.mkdir()
        log.touch()  # by the kubelet
        done = fetch(repository, target, ref)
        assert done.returncode == 0, done.stderr
        assert (target / "train.py").read_text() == text
        assert log.read_text() == git("rev-parse", f"{ref}^{{commit}}", cwd=repository) + "\n"


def test_code_is_fetched_again_into_what_an_earlier_try_left(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "code"
    target.mkdir()
    missing = fetch(repository, target, "no-such-branch")
    assert missing.returncode == pods.MISSING_REVISION
    assert missing.stderr.endswith(f"error: {repository} has no commit, tag or branch no-such-branch\n")
    # The server may answer the next time.
    assert fetch(repository / "elsewhere", target, "v2").returncode not in (0, pods.MISSING_REVISION)
    assert fetch(repository, target, "v2").returncode == 0
    (target / "train.py").write_text("changed by the pod")
    assert fetch(repository, target, "v2").returncode == 0
    assert (target / "train.py").read_text() == "two"
    assert not Path(f"{target}.log").exists()  # nothing reads it where no kubelet has made it


@pytest.mark.parametrize("interpreter", ["dash", "bash"])
@pytest.mark.parametrize(
    "option", ["--control-port 127.0.0.1:{port}", "--upstream-host 127.0.0.1 --upstream-port {port}"]
)
def test_hydras_agent_ends_with_its_daemons(tmp_path: Path, interpreter: str, option: str) -> None:
    require_programs(interpreter)
    (tmp_path / "next").mkdir()
    (tmp_path / "commands").mkdir()
    agent = mpi.HYDRA_AGENT.replace(followers.DIRECTORY, str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = ["-x", "net-worker-gpu-3.net-rendezvous.vision.svc", '"/usr/bin/hydra_pmi_proxy"']
        words += [*option.format(port=server.getsockname()[1]).split(), "--rmk", "user"]
        process = subprocess.Popen([interpreter, "-c", agent, "agent", *words], env={**os.environ, "AVACTL_JOB": "net"})
        try:
            with socket.create_connection(server.getsockname()) as daemon:
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(3)
                server.accept()[0].close()
                daemon.close()
            assert process.wait(patience()) == 0
        finally:
            process.kill()
            process.wait()
    assert (tmp_path / "commands" / "wgpu-3").read_text().split() == words[2:]


NOTEBOOK = """
apiVersion: avactl.dev/v1
kind: Workspace
metadata: {name: li-wei, team: vision}
spec: {user: li.wei, image: jupyter}
---
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: net, team: vision}
spec: {image: train, code: {workspace: {name: li-wei, path: net, home: /notebook}}}
"""


def snapshot(home: Path, target: Path, job: str) -> subprocess.CompletedProcess[str]:
    """Run the init container's script with its own environment, as a pod of a Job with this UID."""
    container = objects(NOTEBOOK)["Job", "net-worker"]["spec"]["template"]["spec"]["initContainers"][0]
    env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    labels = {entry["name"] for entry in container["env"]} - env.keys()
    assert labels == {"JOB_NAME", "JOB_UID"}
    env |= {"WORKSPACE_HOME": str(home), "TARGET": str(target), "JOB_NAME": "net-worker", "JOB_UID": job}
    target.mkdir(exist_ok=True)
    # Linux takes command lines of a quarter of the stack.
    command = ["sh", "-c", 'ulimit -s 512 && exec "$@"', "sh", *container["command"]]
    return subprocess.run(
        command,
        env={**env, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(),
    )


ONE, TWO = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "12")


def test_pods_of_a_job_have_the_code_that_the_workspace_had_at_the_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "net").mkdir(parents=True)
    (home / "net" / "train.py").write_text("one")
    (home / "net" / ".hidden").write_text("too")
    first = snapshot(home, tmp_path / "first", ONE)
    assert first.returncode == 0, first.stderr
    (home / "net" / "train.py").write_text("edited")
    # A pod of the same Job that starts later, then one of another run.
    assert snapshot(home, tmp_path / "first", ONE).stdout == first.stdout
    assert snapshot(home, tmp_path / "later", ONE).stdout == first.stdout
    assert {path.name: path.read_text() for path in (tmp_path / "later").iterdir()} == {
        "train.py": "one",
        ".hidden": "too",
    }
    assert snapshot(home, tmp_path / "other", TWO).returncode == 0
    assert (tmp_path / "other" / "train.py").read_text() == "edited"


def test_pods_that_start_together_take_one_snapshot(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "net").mkdir(parents=True)
    (home / "net" / "train.py").write_text("0")
    with ThreadPoolExecutor(9) as pool:
        done = [pool.submit(snapshot, home, tmp_path / f"pod-{index}", ONE) for index in range(8)]
        while wait(done, timeout=0.5).not_done:
            # As editors save.
            (tmp_path / "next").write_text(str(time.monotonic()))
            (tmp_path / "next").replace(home / "net" / "train.py")
    assert [each.result().returncode for each in done] == [0] * 8, [each.result().stderr for each in done]
    assert len({each.result().stdout for each in done}) == 1
    assert len({(tmp_path / f"pod-{index}" / "train.py").read_text() for index in range(8)}) == 1


def test_a_snapshot_that_is_missing_or_damaged(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    missing = snapshot(home, tmp_path / "code", ONE)
    assert (missing.returncode, missing.stderr) == (
        pods.MISSING_REVISION,
        "error: workspace li-wei has no directory net\n",
    )
    (home / "net").mkdir()
    assert "is empty" in snapshot(home, tmp_path / "code", ONE).stderr
    (home / "net" / "train.py").write_text("one")
    assert snapshot(home, tmp_path / "code", ONE).returncode == 0
    (archive,) = (home / workspace_code.SNAPSHOTS).glob("*.tar")
    archive.write_bytes(archive.read_bytes()[:-1] + b"x")
    assert "is damaged" in snapshot(home, tmp_path / "again", ONE).stderr


def test_snapshots_of_earlier_runs_are_removed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "net").mkdir(parents=True)
    for text, job in (("one", ONE), ("two", TWO)):
        (home / "net" / "train.py").write_text(text)
        assert snapshot(home, tmp_path / "code", job).returncode == 0
    store = home / workspace_code.SNAPSHOTS
    assert len(list(store.iterdir())) == 4
    for path in store.iterdir():
        os.utime(path, (time.time() - 3 * 86400,) * 2)
    assert snapshot(home, tmp_path / "code", TWO).returncode == 0
    assert (tmp_path / "code" / "train.py").read_text() == "two"
    assert [path.name for path in store.iterdir() if path.suffix != ".tar"] == [f"net-worker.{TWO}"]
    assert len(list(store.glob("*.tar"))) == 1


def test_snapshots_of_other_jobs_stay_however_many_there_are(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "net").mkdir(parents=True)
    (home / "net" / "train.py").write_text("one")
    assert snapshot(home, tmp_path / "code", ONE).returncode == 0
    store = home / workspace_code.SNAPSHOTS
    (kept,) = store.glob("*.tar")
    (store / f"net-worker.{ONE}").rename(store / f"net-experiment.{ONE}")
    for number in range(600):
        (store / f"{'x' * 200}-{number}.{TWO}").write_text(f"{number:064x}\n")
    os.mkfifo(store / f"pipe.{TWO}")
    # What a pod left that was killed.
    (store / ".next.a").mkdir()
    (store / ".next.a" / "code.tar").write_text("half")
    for path in (kept, store / ".next.a"):
        os.utime(path, (time.time() - 3 * 86400,) * 2)
    (home / "net" / "train.py").write_text("two")
    done = snapshot(home, tmp_path / "code", TWO)
    assert done.returncode == 0, done.stderr
    assert kept.exists()
    assert not (store / ".next.a").exists()


@pytest.mark.parametrize(
    ("url", "secret", "expected"),
    [
        ("s3://models/a/b", {"RCLONE_S3_ACCESS_KEY_ID": "k"}, ":s3:models/a/b AWS - -"),
        ("s3://models/a", {"RCLONE_S3_ACCESS_KEY_ID": "k", "RCLONE_S3_ENDPOINT": "http://e"}, ":s3:models/a Other - -"),
        ("s3://models/a", {}, ":s3:models/a AWS true -"),
        ("oss://models/a", {"RCLONE_S3_ACCESS_KEY_ID": "k"}, ":s3:models/a Alibaba - -"),
        ("gs://models/a", {}, ":gcs:models/a - - -"),
        ("hdfs://name:8020/a/b", {}, ":hdfs:/a/b - - name:8020"),
    ],
)
def test_rclone_is_told_which_store(tmp_path: Path, url: str, secret: dict[str, str], expected: str) -> None:
    stand_in = tmp_path / "rclone"
    stand_in.write_text(
        "#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\n"
        'echo "$1 ${RCLONE_S3_PROVIDER:--} ${RCLONE_S3_ENV_AUTH:--} ${RCLONE_HDFS_NAMENODE:--}"\n'
    )
    stand_in.chmod(0o755)
    model = f"""
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: net, team: vision}}
spec:
  model: {{name: net, version: "1", url: "{url}"}}
  runtime: {{name: triton, image: "triton:1"}}
"""
    container = objects(model)["Deployment", "net"]["spec"]["template"]["spec"]["initContainers"][0]
    env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    done = subprocess.run(
        container["command"],
        env={**env, **secret, "PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


def test_an_mpi_worker_starts_each_command_once(tmp_path: Path) -> None:
    script = mpi.WORKER_SCRIPT.replace(followers.DIRECTORY, str(tmp_path))
    log = tmp_path / "log"

    def launch(text: str) -> None:
        (tmp_path / "next").write_text(f"echo {text} >> {log}\n")
        (tmp_path / "next").rename(tmp_path / "command")

    def wait_for(lines: list[str]) -> None:
        wait_until(lambda: (log.read_text().split() if log.exists() else []) == lines, details=log.read_text)

    def stop(worker: subprocess.Popen[bytes]) -> None:
        worker.terminate()
        assert worker.wait(patience()) == 143

    launch("one")
    worker = subprocess.Popen(["sh", "-c", script])
    wait_for(["one"])
    launch("two")
    wait_for(["one", "two"])
    stop(worker)
    # The container starts again: mpirun takes a second daemon of the same number for an error.
    worker = subprocess.Popen(["sh", "-c", script])
    time.sleep(1.5)
    wait_for(["one", "two"])
    stop(worker)


def follow(tmp_path: Path, restarts: str, job: str = "run-1 ") -> subprocess.CompletedProcess[str]:
    """Run the watcher with a kubectl that tells it of one Job and of its own sidecar; patches go to a file."""
    stand_in = tmp_path / "kubectl"
    stand_in.write_text(
        '#!/bin/sh\ncase "$1 $2" in\n'
        f"'get job') printf '%s' '{job}' ;;\n'get pod') printf '%s' '{restarts}' ;;\n"
        f"'patch job') echo \"$3 $6\" >> {tmp_path}/patches ;;\nesac\n"
    )
    stand_in.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "LEADERS": "net-chief",
        "RUN": "run-1",
        "ROLE": "server",
        "POD": "p",
        "RETRIES": "3",
        "GRACE": "0",
        "LINGER": "0",
        "PERIOD": "1",
        "COMMANDS": "",
    }
    try:
        return subprocess.run(
            ["sh", "-c", followers.FOLLOW_SCRIPT], env=env, capture_output=True, text=True, timeout=2, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess([], -1)


@pytest.mark.parametrize(
    ("restarts", "code"),
    [
        ("4 1", followers.GAVE_UP),
        ("4 137", followers.GAVE_UP),
        ("3 1", -1),  # as many as `retries` allows
        ("9 0", -1),  # it ended by itself: no failure
        ("0 ", -1),
        ("", -1),
    ],
)
def test_a_sidecar_that_keeps_failing_fails_its_run(tmp_path: Path, restarts: str, code: int) -> None:
    assert follow(tmp_path, restarts).returncode == code
    patches = tmp_path / "patches"
    # Otherwise the leader would wait for it with all of its GPUs.
    assert patches.exists() == (code == followers.GAVE_UP)
    if patches.exists():
        assert patches.read_text() == 'net-chief {"spec":{"activeDeadlineSeconds":1}}\n'


def test_a_watcher_does_not_follow_links_of_the_program_beside_it(tmp_path: Path) -> None:
    """A kubeconfig in the watcher's home names programs that kubectl starts, with the token."""
    shared, own, kubectl = tmp_path / "shared", tmp_path / "config", tmp_path / "kubectl"
    shared.mkdir()
    own.write_text("own")
    link = f"ln -sf {own} {shared}/.next"
    kubectl.write_text(
        f'#!/bin/sh\ncase "$1 $2" in\n"get configmap") [ -e {shared}/command ] || {link}; echo theirs ;;\nesac\n'
    )
    kubectl.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "LEADERS": "net-launcher",
        "RUN": "run-1",
        "ROLE": "worker",
        "POD": "p",
        "RETRIES": "3",
        "GRACE": "0",
        "LINGER": "0",
        "PERIOD": "1",
        "COMMANDS": "net-launch",
        "KEY": "w0",
        "DIRECTORY": str(shared),
    }
    watcher = subprocess.Popen(["sh", "-c", followers.FOLLOW_SCRIPT], env=env)
    try:
        wait_until((shared / "command").exists)
    finally:
        watcher.kill()
        watcher.wait()
    assert own.read_text() == "own"
    assert (shared / "command").read_text() == "theirs\n"


def test_a_watcher_ends_with_its_leader(tmp_path: Path) -> None:
    assert follow(tmp_path, "0 ", "run-1 Complete").returncode == 0
    assert follow(tmp_path, "0 ", "run-1 Failed").returncode == followers.FAILED
    assert follow(tmp_path, "0 ", "run-0 Complete").returncode == -1


def test_prefixes_are_created_once_and_only_below_a_mounted_store(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    calls, table = tmp_path / "calls", tmp_path / "table"
    stand_in = tmp_path / "bin" / "alluxio"
    stand_in.write_text(
        "#!/bin/bash\n"
        f'case "$*" in\n"fs mount") cat {table} ;;\n"fs test -d /results/old") ;;\n"fs test"*) exit 1 ;;\n'
        f'*) echo "$*" >> {calls} ;;\nesac\n'
    )
    stand_in.chmod(0o755)
    table.write_text("/ on / (local, capacity=1)\n")
    script = shell.PREFIXES_SCRIPT.replace(names.HOME, str(tmp_path)).replace("sleep 10", "sleep 0.1")
    run = subprocess.Popen(["bash", "-c", script, "prefixes.sh", "/results/old", "/results/new"])
    time.sleep(0.5)
    assert run.poll() is None
    assert not calls.exists()  # a directory here would be in the way of the mount
    table.write_text("s3://results on /results (s3, capacity=-1B)\n")
    assert run.wait(patience()) == 0
    assert calls.read_text() == "fs -Dalluxio.user.file.writetype.default=CACHE_THROUGH mkdir /results/new\n"
