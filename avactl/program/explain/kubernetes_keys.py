"""Kubernetes' keys and kinds that specs do not have, and what to write instead."""

from __future__ import annotations

_NEVER_HINT = "pods of teams cannot have it; remove it"
_POD_HINT = "the program has `image`, `command`, `args` and `env` in `spec`; settings of its pods go into `spec.pod`"

_PER_USER_HINT = (
    "a quota limits a team: a policy can limit the GPUs of each of its specs, and a Team of one user has its own quota"
)

_HINTS = {
    **dict.fromkeys(
        ("privileged", "hostPID", "hostIPC", "hostUsers", "sysctls", "procMount", "volumeDevices"), _NEVER_HINT
    ),
    "hostPath": "pods of teams see no files of machines; use `emptyDir`, `scratch` or `persistentVolumeClaim`",
    "hostNetwork": "only a TrainingJob has it, in `spec`: `hostNetwork: {}`",
    "hostPort": "pods of teams open no ports of machines; remove it",
    "nodeName": "it bypasses the scheduler; write `pod: {nodeSelector: {kubernetes.io/hostname: NAME}}`",
    "schedulerName": "set for all pods by `daemons: {scheduler: true}` of the Cluster",
    "runtimeClassName": "a runtime class changes the isolation of pods; remove it",
    "priorityClassName": "a TrainingJob has `priority: low`, `normal` or `high`; services and workspaces have a class "
    "of their own",
    "activeDeadlineSeconds": "write `timeout: 12h` in `spec` of a TrainingJob",
    "backoffLimit": "write `retries: 3` in `spec` of a TrainingJob",
    "ttlSecondsAfterFinished": "write `ttl: 1d` in `spec` of a TrainingJob",
    "autoscaling": "write bounds: `replicas: {min: 1, max: 4}`",
    "requests": "write `cpu`, `memory` and `gpus` beside each other",
    "limits": "write `cpu`, `memory` and `gpus` beside each other",
    "containers": "the program has `image`, `command` and `env` in the spec; others go into `pod.sidecars`",
    "template": _POD_HINT,
    "podTemplate": _POD_HINT,
    "volumes": "write `pod: {volumes: [{name: …, mountPath: …, emptyDir: {}}]}`",
    "volumeMounts": "each volume has its own `mountPath`: `pod: {volumes: [{name: …, mountPath: …, emptyDir: {}}]}`",
    "volumeClaimTemplates": "write `pod: {volumes: [{name: …, mountPath: …, scratch: {size: 1Ti}}]}`",
    "imagePullPolicy": "digests never change and tags are pulled by Kubernetes' default; change it by `patches`",
    "lifecycle": "change it by `patches`",
    "selector": "avactl writes selectors itself; remove it",
    "matchLabels": "avactl writes selectors itself; remove it",
    "valueFrom": "write `NAME: {secret: {name: …, key: …}}`, `{configMap: {name: …, key: …}}` or `{field: …}`",
    "status": "only the cluster writes it; remove it",
    "nvidia.com/gpu": "write `gpus`, and the model as `gpu: NAME` if there are several",
    "workingDir": 'change it by `patches`, or begin the command with `sh, -c, "cd DIR && …"`',
    "storageClassName": "storage classes are the platform's choice: `storageClasses` of the Cluster",
}
_SERVICE_PROBE = "write `probe: {path: /health, port: 8000}`; `startup` is the time to load the model"
_OF_KIND = {
    "TrainingJob": {
        **dict.fromkeys(("replicas", "parallelism", "completions", "nodes"), "write `workers: {replicas: 4}`"),
        **dict.fromkeys(("resources", "limits", "requests"), "write `workers: {gpus: 8, cpu: 16, memory: 64Gi}`"),
        **dict.fromkeys(("gpus", "gpu", "cpu", "memory", "link", "pool"), "it belongs to `spec.workers`"),
        **dict.fromkeys(("gres", "gpus-per-node", "gpus-per-task"), "write `workers: {gpus: 8, gpu: H100}`"),
        **dict.fromkeys(
            ("ntasks", "ntasks-per-node"),
            "write `workers: {replicas: 4, gpus: 8}`; torchrun starts a process "
            "for each GPU, and mpirun `slotsPerWorker`",
        ),
        **dict.fromkeys(("cpus-per-task", "mem", "mem-per-cpu"), "write `workers: {cpu: 16, memory: 64Gi}`"),
        **dict.fromkeys(("partition", "constraint"), "write `workers: {pool: NAME}`"),
        **dict.fromkeys(("time", "deadline"), "write `timeout: 12h`"),
        **dict.fromkeys(("qos", "nice"), "write `priority: low`, `normal` or `high`"),
        **dict.fromkeys(
            ("dependencies", "depends", "dependsOn", "dependency", "needs"),
            "write `after: [NAME]`, with jobs of the team",
        ),
        "restartPolicy": "pods are restarted by avactl; write how often: `retries: 3`",
        "suspend": "write `suspended: true`",
        "ports": "pods of a job reach each other on all ports; remove it",
    },
    "ServingDeployment": {
        **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), _SERVICE_PROBE),
        **dict.fromkeys(("ports", "port", "containerPort", "targetPort"), "write `runtime: {port: 8000}`"),
        **dict.fromkeys(("image", "command", "args"), "it belongs to `spec.runtime`"),
        **dict.fromkeys(("strategy", "rollingUpdate", "maxUnavailable"), "write `maxSurge: 1`, or 0"),
        **dict.fromkeys(("minReplicas", "maxReplicas"), "write `replicas: {min: 1, max: 4}`"),
        "terminationGracePeriodSeconds": "write `drain: 60s`",
        "workers": "write `replicas: 2`, and `resources: {gpus: 1, cpu: 8, memory: 32Gi}` of each",
        "ingress": "write `expose: {host: …}`",
        "headless": "write `balance: headless`",
    },
    "Workspace": {
        **dict.fromkeys(("resources", "limits", "requests"), "write `cpu`, `memory` and `gpus` in `spec`"),
        **dict.fromkeys(("replicas", "accessModes"), "a workspace is one pod; remove it"),
    },
    "NodePool": {
        **dict.fromkeys(("minSize", "minNodes", "minCount"), "write `autoscaling: {min: 0, max: 8}`, or `count`"),
        **dict.fromkeys(("maxSize", "maxNodes", "maxCount"), "write `autoscaling: {min: 0, max: 8}`, or `count`"),
        **dict.fromkeys(("size", "replicas", "desiredSize", "nodeCount"), "write `count: 4`"),
        **dict.fromkeys(("spot", "preemptible", "interruptible", "capacityType"), "write `capacity: spot`"),
    },
    "Cluster": {
        "requests": "it belongs to `spec.exposure`: write `exposure: {requests: …}`",
    },
    "Quota": {
        "hard": "write `gpus: [{gpu: V100, guaranteed: 8}]`, `cpu` and `memory` in `spec`",
        **dict.fromkeys(("users", "perUser", "user", "maxPerUser"), _PER_USER_HINT),
        **dict.fromkeys(
            ("gpuHours", "hours", "budget", "credits"),
            "no quota counts GPU-hours: `avactl plan` prints those of a change, and a policy can bound `timeout`",
        ),
        **dict.fromkeys(
            ("reservation", "reservations", "from", "until", "start", "end", "schedule"),
            "a guarantee holds at all times: a commit changes `guaranteed` on the day",
        ),
    },
}
"""Remedies for keys of `spec`, by kind."""
_HINTS_BELOW = {
    "probe": dict.fromkeys(
        ("httpGet", "initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold"),
        "write `path: /health`, `port: 8000`, `period: 10s`, `timeout: 2s` and `startup: 10m` beside each other",
    ),
    "expose": dict.fromkeys(("grpcHost", "protocol"), "write `grpc: {host: …}` for the gRPC port of a service"),
    "persistentVolumeClaim": {"name": "write `claimName`"},
    "secret": {"name": "write `secretName`"},
    "template": dict.fromkeys(
        ("apiVersion", "kind", "metadata", "spec"), "`template` is the `spec` of a TrainingJob: write only its keys"
    ),
    "trigger": dict.fromkeys(
        ("every", "interval"), 'write `schedule: {cron: "0 3 * * *"}`; `checkpoint: {every: 1h}` is for a running job'
    ),
    "metrics": {"cpu": "write `cpuUtilization: 70` in `replicas`"},
    "gateway": {"requests": "it belongs to `spec.exposure`, beside `gateway`"},
    "replicas": {"minReplicas": "write `min`", "maxReplicas": "write `max`", "scaleToZero": "write `min: 0`"},
    "rollout": {
        **dict.fromkeys(
            ("strategy", "type"), "write `canary: {steps: [{percent: 25}]}`, `blueGreen: {}` or `rolling: {}`"
        ),
        "rollback": "a version that is worse is always rolled back, and the Cluster says whether git follows: "
        "`delivery: {rollback: …}`",
    },
    "workers": {"resources": "write `cpu`, `memory` and `gpus` beside each other"},
    **{key: {"resources": "write `cpu` and `memory` beside each other"} for key in ("sidecars", "initContainers")},
    "pod": {"resources": "the program has `cpu`, `memory` and `gpus` in the spec, sidecars their own"},
    "notify": dict.fromkeys(
        ("slack", "teams", "pagerduty", "url", "channel"),
        "write `webhook: {name: …, key: …}`: the Secret with the URL that is posted to",
    ),
    "gpus": {
        **dict.fromkeys(("limit", "max", "limits"), "write `borrow`, what it may use beyond `guaranteed`"),
        **dict.fromkeys(("perUser", "user", "users", "maxPerUser"), _PER_USER_HINT),
    },
    "runtime": {
        **dict.fromkeys(("ports", "containerPort"), "write `port: 8000`"),
        **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe", "probe"), f"in `spec`, {_SERVICE_PROBE}"),
    },
}
"""Remedies for keys of a mapping, by its name."""

KINDS = {
    **dict.fromkeys(("Job", "PyTorchJob", "TFJob", "MPIJob", "TrainJob", "XGBoostJob", "RayJob"), "TrainingJob"),
    **dict.fromkeys(
        ("Deployment", "LeaderWorkerSet", "DisaggregatedSet", "InferenceService", "RayService"), "ServingDeployment"
    ),
    "Service": "ServingDeployment",
    **dict.fromkeys(("StatefulSet", "Notebook"), "Workspace"),
    **dict.fromkeys(("ResourceQuota", "LimitRange", "ClusterQueue", "LocalQueue", "Queue"), "Quota"),
    **dict.fromkeys(("Namespace", "RoleBinding", "Profile"), "Team"),
    **dict.fromkeys(("Node", "NodeGroup", "MachineSet", "MachinePool", "ResourceFlavor"), "NodePool"),
    "PersistentVolumeClaim": "Dataset",
    **dict.fromkeys(("SparkApplication", "SparkJob"), "ProcessingJob"),
    **dict.fromkeys(("PipelineRun", "ScheduledWorkflow", "CronWorkflow", "Workflow"), "Pipeline"),
}
"""Kinds of Kubernetes and its usual extensions → the kind of avactl with the same purpose."""


VALUES = {
    **dict.fromkeys(("nvswitch", "nvl", "nv"), "nvlink"),
    **dict.fromkeys(("pix", "pcie", "pxb"), "pcieSwitch"),
    **dict.fromkeys(("phb", "numa"), "socket"),
    **dict.fromkeys(("sys", "pci"), "any"),
    **dict.fromkeys(("ddp", "fsdp", "nccl", "distributed", "deepspeed", "torchrun", "accelerate"), "allReduce"),
    **dict.fromkeys(("horovod", "mpirun", "openmpi"), "mpi"),
    **dict.fromkeys(("ray", "jax", "flax", "paddle", "paddlepaddle", "mindspore"), "custom"),
    **dict.fromkeys(("huggingface", "transformers", "lightning", "pytorch-lightning"), "pytorch"),
    "keras": "tensorflow",
    **dict.fromkeys(("urgent", "critical", "highest"), "high"),
    **dict.fromkeys(("medium", "default"), "normal"),
    **dict.fromkeys(("preemptible", "interruptible"), "spot"),
    "rw": "readWrite",
    **dict.fromkeys(("ro", "r", "readonly"), "read"),
    **dict.fromkeys(("pr", "mr", "mergerequest"), "pullRequest"),
    **dict.fromkeys(("roundrobin", "clusterip"), "service"),
    **dict.fromkeys(("nvme", "disk"), "SSD"),
    **dict.fromkeys(("ram", "memory", "dram"), "MEM"),
    **dict.fromkeys(("yes", "true", "on"), "allow"),
    **dict.fromkeys(("no", "false", "off"), "never"),
    "ps": "parameterServer",
    "torch": "pytorch",
    "tf": "tensorflow",
    "privileged": "baseline",
}
"""Other tools' values → avactl's, where that one is valid."""
CONCEPTS = {
    **dict.fromkeys(("Model", "Endpoint", "Inference"), "write `kind: ServingDeployment`, with a `model`"),
    **dict.fromkeys(("User", "Group", "Member", "Project"), "write `kind: Team`: `members` has users and groups"),
    **dict.fromkeys(("Bucket", "Storage"), "write it into `buckets` of a Team, or a Dataset for data that is read"),
    **dict.fromkeys(
        ("Experiment", "Sweep", "Run", "Trial"),
        "write a TrainingJob for each trial; a file in Python makes them in a loop: docs/python-specs.md",
    ),
    "CronJob": "write a TrainingJob with `schedule: {cron: …}`, or a Pipeline",
    "Secret": "no spec has secret values: `avactl secrets` lists what to create in the cluster",
    "Policy": "policies are files in `policies/`: `avactl explain policies`",
    "Environment": "environments are in avactl.yaml: docs/environments.md",
    **dict.fromkeys(("Volume", "ConfigMap"), "write it under `objects` of a KubernetesObjects"),
}
"""Words for what specs have in another form → the remedy."""
SHARED_GPUS = "write a whole number; only a Workspace shares GPUs: `gpus: 0.5`"


def hint_for_key(kind: str, path: tuple[str | int, ...]) -> str:
    """Return the remedy for an unknown key, the last step of `path`; "" if there is none.

    A remedy for the key below its parent wins over that for `spec` of the kind, and that over the general one.
    """
    key = str(path[-1])
    parent = next((str(step) for step in reversed(path[:-1]) if isinstance(step, str)), "")
    below = _HINTS_BELOW.get(parent, {}).get(key, "")
    of_kind = _OF_KIND.get(kind, {}).get(key, "") if path[:-1] == ("spec",) else ""
    return below or of_kind or _HINTS.get(key, "")
