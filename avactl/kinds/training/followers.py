"""Pods that end when another Job of the same run has ended: parameter servers, MPI workers, evaluators, job masters.

Kubernetes does not link Jobs, and these programs would wait for requests forever. So the program runs as a sidecar (an
init container with `restartPolicy: Always`), and the pod's main container only watches the leading Job. When that Job
ends, the main container exits, the kubelet stops the sidecar, and pod and Job complete: the GPUs are free, the logs
remain. The kubelet restarts a sidecar for ever, so the watcher counts its failures: after `retries` it fails the run.
The watcher may read the pods of its namespace, and read and stop one Job by name; user code gets no token.
Source: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#jobs-with-sidecar-containers
"""

from __future__ import annotations

from collections.abc import Sequence

from avactl.contracts.names import FOLLOWER
from avactl.contracts.pod_annotations import JOB_INDEX, RUN_DIGEST
from avactl.kinds.training.addressing import field_variable
from avactl.kinds.training.roles import RolePods
from avactl.kinds.training.spec import TrainingJobSpec
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import build_helper, build_resources, env_list
from avactl.program.lowering.rights import build_account
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program

PARTNER = "partner"
"""Sidecar of leading pods that watches the other leading Jobs."""
FAILED = 3
"""Exit code of the watcher when the leading Job has failed."""
GAVE_UP = 4
"""Exit code of the watcher when its sidecar has failed more often than `retries` allows."""
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
DIRECTORY = "/var/run/avactl"
"""Directory where the watcher writes the command of an MPI worker."""
EVALUATOR_GRACE = 300
"""Grace period of an evaluator for the last checkpoint, in seconds."""

_WATCH_SCRIPT = """\
run='{.metadata.annotations.avactl\\.dev/run}'
conditions='{range .status.conditions[?(@.status=="True")]} {.type}{end}'
look() { kubectl get job "$1" -o "jsonpath=$run$conditions"; }
# A deadline in the past fails a Job.
stop() { kubectl patch job "$1" --type=merge -p '{"spec":{"activeDeadlineSeconds":1}}'; }"""

PARTNER_SCRIPT = f"""\
trap 'exit 0' TERM
{_WATCH_SCRIPT}
while true; do
  for leader in $LEADERS; do
    case "$(look "$leader") " in
      "$RUN "*"Failed "*) echo "job $leader has failed: job $OWN is stopped"; stop "$OWN" ;;
    esac
  done
  sleep "$PERIOD" & wait
done
"""
"""Fails a leading Job when another one of its run has failed: its pods would wait for theirs."""

FOLLOW_SCRIPT = f"""\
trap 'sleep "$LINGER"; exit 143' TERM
{_WATCH_SCRIPT}
restarts='{{range .status.initContainerStatuses[?(@.name=="'$ROLE'")]}}'
restarts=$restarts'{{.restartCount}} {{.lastState.terminated.exitCode}}{{end}}'
while true; do
  left=
  for leader in $LEADERS; do
    case "$(look "$leader") " in
      "$RUN "*"Complete "*) ;;
      "$RUN "*"Failed "*) echo "job $leader has failed"; exit {FAILED} ;;
      *) left=1 ;;
    esac
  done
  if [ -z "$left" ]; then sleep "$GRACE" & wait; exit 0; fi
  if seen=$(kubectl get pod "$POD" -o "jsonpath=$restarts"); then
    count=${{seen%% *}} code=${{seen#* }}
    if [ "${{count:-0}}" -gt "$RETRIES" ] && [ "${{code:-0}}" != 0 ]; then
      echo "$ROLE has failed $count times, the last time with exit code $code: job $LEADERS is stopped"
      # The leaders would wait for this pod with all of their GPUs.
      for leader in $LEADERS; do stop "$leader"; done
      exit {GAVE_UP}
    fi
  fi
  if [ -n "$COMMANDS" ]; then
    # What the launcher wants this worker to run; a file that is there is whole.
    if text=$(kubectl get configmap "$COMMANDS" -o "jsonpath={{.data.$KEY}}"); then
      # The worker's program may write there, too: a link of its own must not lead to files of this container.
      rm -f "$DIRECTORY/.next"
      if (set -C; printf '%s\\n' "$text" > "$DIRECTORY/.next"); then
        mv "$DIRECTORY/.next" "$DIRECTORY/command"
      fi
    fi
  fi
  sleep "$PERIOD" & wait
done
"""
"""Exits with 0 when the leading Jobs of this run are complete. A Job of the same name from an earlier run is ignored.
`LINGER` is how long it keeps its sidecar alive while the pod is deleted, in seconds."""


def polling_period(followers: int) -> int:
    """Polling period in seconds, chosen so that all watchers together send about ten requests per second."""
    return max(5, followers // 10)


def follower_account(item: Item[TrainingJobSpec]) -> str:
    """Name of the service account of a job's followers."""
    return f"{item.name}-{FOLLOWER}"


def build_follower(
    item: Item[TrainingJobSpec],
    program: Program,
    pod: Body,
    leaders: Sequence[str],
    part: RolePods,
    count: int,
    *,
    grace: int,
    linger: int,
    commands: str,
) -> Body:
    """Build the spec of a pod that ends with the Jobs `leaders`: its only container becomes a sidecar of the watcher.

    `commands` names the ConfigMap whose key `wINDEX` (`wGROUP-INDEX`) the watcher writes to `command` in the volume
    `launch`.
    """
    main = {**pod["containers"][0], "restartPolicy": "Always"}
    mounts = [{"name": "token", "mountPath": TOKEN_PATH, "readOnly": True}]
    if commands:
        mounts.append({"name": "launch", "mountPath": DIRECTORY})
    env = {
        "LEADERS": " ".join(leaders),
        "GRACE": str(grace),
        "LINGER": str(linger),
        "ROLE": main["name"],
        "RETRIES": str(item.spec.retries),
        "PERIOD": str(polling_period(count)),
        "COMMANDS": commands,
        "DIRECTORY": DIRECTORY,
    }
    prefix = f"{part.group}-" if part.group else ""
    fields = [
        field_variable("POD", "metadata.name"),
        field_variable("RUN", RUN_DIGEST.field_path),
        field_variable("INDEX", JOB_INDEX.field_path),
        *env_list({"KEY": f"w{prefix}$(INDEX)"} if commands else {}),
    ]
    image = program.cluster_spec(item.cluster).images.kubectl
    watcher = build_helper(
        FOLLOWER, image, FOLLOW_SCRIPT, [*env_list(env), *fields], build_resources("10m", "128Mi"), mounts
    )
    return {
        **pod,
        "serviceAccountName": follower_account(item),
        "initContainers": [*pod.get("initContainers", ()), main],
        "containers": [watcher],
        "volumes": [*pod.get("volumes", ()), token_volume()],
    }


def watch_partners(
    item: Item[TrainingJobSpec], program: Program, pod: Body, own: str, leaders: Sequence[str], count: int
) -> Body:
    """Add the sidecar that fails the leading Job `own` when another one of `leaders` has failed."""
    env = {
        "OWN": own,
        "LEADERS": " ".join(name for name in leaders if name != own),
        "PERIOD": str(polling_period(count)),
    }
    run = field_variable("RUN", RUN_DIGEST.field_path)
    image = program.cluster_spec(item.cluster).images.kubectl
    mounts = [{"name": "token", "mountPath": TOKEN_PATH, "readOnly": True}]
    watcher = build_helper(
        PARTNER,
        image,
        PARTNER_SCRIPT,
        [*env_list(env), run],
        build_resources("10m", "128Mi"),
        mounts,
        restartPolicy="Always",
    )
    return {
        **pod,
        "serviceAccountName": follower_account(item),
        "initContainers": [*pod.get("initContainers", ()), watcher],
        "volumes": [*pod.get("volumes", ()), token_volume()],
    }


def token_volume() -> Body:
    """Token, certificate and namespace for kubectl, mounted in one container of a pod only."""
    return {
        "name": "token",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            ]
        },
    }


def follower_access(
    item: Item[TrainingJobSpec],
    leaders: Sequence[str],
    commands: str = "",
    more: Sequence[Body] = (),
    accounts: Sequence[str] = (),
) -> list[Manifest]:
    """Account with rules to read and stop the leading Jobs, and to read the ConfigMap of commands.

    It may read all pods of the namespace, because names of pods are random. `more` are the rules of the job master.
    """
    rules = [
        k8s.policy_rule(["batch"], ["jobs"], ["get", "patch"], resourceNames=[*leaders]),
        k8s.policy_rule([""], ["pods"], ["get"]),
    ]
    if commands:
        rules.append(k8s.policy_rule([""], ["configmaps"], ["get"], resourceNames=[commands]))
    return build_account(item, follower_account(item), FOLLOWER, [*rules, *more], accounts)
