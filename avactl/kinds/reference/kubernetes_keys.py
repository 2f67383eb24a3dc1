"""Kubernetes' keys that specs do not have, and what to write instead."""

from __future__ import annotations

_NEVER = "pods of teams cannot have it; remove it"

HINTS = {
    **dict.fromkeys(("privileged", "hostPID", "hostIPC", "hostUsers", "sysctls", "procMount", "volumeDevices"), _NEVER),
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
}
"""Key → remedy. It applies where the key is not valid, and no key of the same name is beside it."""
