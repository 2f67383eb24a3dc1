"""Open MPI, MPICH and Intel MPI without ssh and without permission to exec in other pods.

mpirun calls its remote-shell agent with a host and a command. Here the agent writes the command to a file; a sidecar
of the launcher, the only container with a token, publishes all files in the ConfigMap `NAME-launch`; each worker's
watcher reads its own key and passes it to the worker's loop, which runs it. From then on mpirun's daemons talk over
TCP. So the launcher may update one ConfigMap, a worker may read it, no key pair exists, and no worker port accepts
commands.
MPICH and Intel MPI start ranks by hydra, which calls an agent in the same way, and takes an agent that ends before its
daemons for a failure.
Source of the variables: `ompi_info --all`; Open MPI 5 reads those of PRRTE; hydra's are in its `mpiexec.hydra -info`
and in Intel MPI's Developer Reference, Hydra Environment Variables.
"""

from __future__ import annotations

from collections.abc import Sequence

from avactl.kinds.training.addressing import config_value, mpi_implementation
from avactl.kinds.training.followers import DIRECTORY as LAUNCH
from avactl.kinds.training.followers import TOKEN_PATH, token_volume
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import HOME, PodVolumes, build_helper, build_resources, env_list
from avactl.program.lowering.rights import build_account
from avactl.program.manifest import Body, Manifest
from avactl.program.ownership import Owned
from avactl.program.program import Item, Program

CONFIG = "/etc/avactl/mpi"
COMMANDS_DATA = Owned("ConfigMap", ("data",), "the launcher, in the ConfigMap `NAME-launch` of strategy `mpi`")
MAX_WORKERS = 512
"""An orted command is below 2 kB, and a ConfigMap holds 1 MiB."""

_NEXT_FILE = f"{LAUNCH}/next"
_COMMANDS_FILE = f"{LAUNCH}/commands"

_WRITE_SCRIPT = f"""\
pod=${{1%%.*}}
key=w${{pod#"$AVACTL_JOB-worker-"}}
shift
next=$(mktemp {_NEXT_FILE}/XXXXXX) || exit 1
printf '%s\\n' "$*" > "$next" && mv "$next" "{_COMMANDS_FILE}/$key" || exit 1"""

AGENT = f"""\
#!/bin/sh
# Open MPI's remote-shell agent: agent HOST COMMAND
{_WRITE_SCRIPT}
"""

HYDRA_AGENT = f"""\
#!/bin/sh
# hydra's launcher: agent [OPTION…] HOST COMMAND
while [ "${{1#-}}" != "$1" ]; do shift; done
{_WRITE_SCRIPT}
# It ends with the daemons: when none is connected to mpiexec's port any more.
words=$*
port=${{words#*--control-port }}
port=${{port#*--upstream-port }}
port=${{port%% *}}
hex=$(printf ':%04X' "${{port##*:}}")
connected() {{
  cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ own _ state _; do
    if [ "${{own%"$hex"}}" != "$own" ] && [ "$state" = 01 ]; then echo yes; break; fi
  done
}}
until [ -n "$(connected)" ]; do
  kill -0 "$PPID" 2>/dev/null || exit 1
  sleep 1
done
while [ -n "$(connected)" ]; do sleep 1; done
"""

PUBLISH_SCRIPT = f"""\
trap 'exit 0' TERM
mkdir -p {_NEXT_FILE} {_COMMANDS_FILE}
last=none
while true; do
  # The first look finds nothing, and clears what an earlier launcher wanted.
  now=$(cat {_COMMANDS_FILE}/* 2>/dev/null)
  if [ "$now" != "$last" ] &&
    kubectl create configmap "$COMMANDS" --from-file={_COMMANDS_FILE} --dry-run=client -o json |
      kubectl apply --server-side --force-conflicts --field-manager=avactl-launcher --validate=false -f - >/dev/null
  then
    last=$now
  fi
  sleep 1 & wait
done
"""

WORKER_SCRIPT = f"""\
trap 'exit 143' TERM
while true; do
  next=$(cat {LAUNCH}/command 2>/dev/null)
  # `started` outlives the container: a daemon that is started twice confuses mpirun.
  if [ -n "$next" ] && [ "$next" != "$(cat {LAUNCH}/started 2>/dev/null)" ]; then
    printf '%s\\n' "$next" > {LAUNCH}/started
    sh -c "$next" &
  fi
  sleep 1 & wait $!
done
"""


def commands_name(item: Item[TrainingJobSpec]) -> str:
    """Name of the ConfigMap with the workers' commands."""
    return f"{item.name}-launch"


def rendezvous_files(item: Item[TrainingJobSpec]) -> dict[str, str]:
    """Data of the rendezvous ConfigMap in addition to the hostfile."""
    user, group = item.spec.run_as_user, item.spec.run_as_group or item.spec.run_as_user
    # Open MPI refuses to start for a user without a name.
    agent = AGENT if mpi_implementation(item.spec) == "openmpi" else HYDRA_AGENT
    return {"agent": agent, "passwd": f"user:x:{user}:{group}::{HOME}:/bin/sh\n"}


def launcher_command(spec: TrainingJobSpec) -> str:
    """Command that starts the ranks. `mpirun` of an image may be another library's."""
    return "mpirun" if mpi_implementation(spec) == "openmpi" else "mpiexec.hydra"


def launcher_environment(item: Item[TrainingJobSpec]) -> list[Body]:
    """Settings of the MPI library in the launcher."""
    agent, hostfile = f"{CONFIG}/agent", f"{CONFIG}/hostfile"
    # Workers cannot resolve the short name of the launcher. On machines' networks names are those of machines.
    interface = {} if item.spec.host_network is not None else {"IFACE": "eth0"}
    library = mpi_implementation(item.spec)
    if library == "mpich":
        own = {"HOST_FILE": hostfile, "LAUNCHER": "rsh", "LAUNCHER_EXEC": agent, **interface}
        return env_list({f"HYDRA_{name}": value for name, value in own.items()})
    if library == "intel":
        own = {"HOST_FILE": hostfile, "BOOTSTRAP": "rsh", "BOOTSTRAP_EXEC": agent, **interface}
        slots = config_value(item, "I_MPI_PERHOST", "slots")
        return [*env_list({f"I_MPI_HYDRA_{name}": value for name, value in own.items()}), slots]
    return env_list(
        {
            "OMPI_MCA_plm_rsh_agent": agent,
            # Workers cannot start processes on each other.
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
            "OMPI_MCA_orte_default_hostfile": hostfile,
            "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
            "PRTE_MCA_plm_ssh_agent": agent,
            "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
            "PRTE_MCA_prte_default_hostfile": hostfile,
            "PRTE_MCA_prte_keep_fqdn_hostnames": "1",
        }
    )


def mount_files(volumes: PodVolumes, config_map: str, *, launcher: bool) -> None:
    """Mount the files of launcher and workers, and the directory of commands."""
    keys = ("agent", "hostfile", "passwd") if launcher else ("passwd",)
    volumes.config("mpi", config_map, CONFIG, keys=keys, executable=True)
    volumes.file("mpi", "passwd", "/etc/passwd")
    volumes.empty("launch", LAUNCH)


def build_launcher(item: Item[TrainingJobSpec], program: Program, pod: Body) -> Body:
    """Build the launcher's pod with the sidecar that publishes the commands."""
    publisher = build_helper(
        "publisher",
        program.cluster_spec(item.cluster).images.kubectl,
        PUBLISH_SCRIPT,
        env_list({"COMMANDS": commands_name(item)}),
        build_resources("10m", "128Mi"),
        [
            {"name": "token", "mountPath": TOKEN_PATH, "readOnly": True},
            {"name": "launch", "mountPath": LAUNCH},
        ],
        restartPolicy="Always",
        # mpirun must find the directories.
        startupProbe={"exec": {"command": ["test", "-d", _COMMANDS_FILE]}, "periodSeconds": 1},
    )
    return {
        **pod,
        "serviceAccountName": f"{item.name}-launcher",
        "initContainers": [*pod.get("initContainers", ()), publisher],
        "volumes": [*pod.get("volumes", ()), token_volume()],
    }


def build_commands_objects(item: Item[TrainingJobSpec], accounts: Sequence[str] = ()) -> list[Manifest]:
    """Return the ConfigMap of commands, which the launcher fills, and its permission to do so."""
    name = commands_name(item)
    rules = [k8s.policy_rule([""], ["configmaps"], ["get", "patch"], resourceNames=[name])]
    return [
        k8s.build_manifest(
            item,
            item.cluster,
            "v1",
            "ConfigMap",
            name,
            namespace=item.ns,
            component="launcher",
            owned=(COMMANDS_DATA.field,),
        ),
        *build_account(item, f"{item.name}-launcher", "launcher", rules, accounts),
    ]
