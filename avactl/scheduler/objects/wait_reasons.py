"""Reasons of the PodScheduled condition of pods that wait."""

from __future__ import annotations

from enum import StrEnum


class WaitReason(StrEnum):
    """The reason why a pod has no node yet.

    Cluster Autoscaler (`isUnschedulable` in utils/kubernetes/listers.go) and Karpenter (`FailedToSchedule` in
    utils/pod/scheduling.go) add nodes for pods with the reason Unschedulable, and for no others. Both know what
    kube-scheduler waits for, and try the pod on a new node; they know nothing of quotas, gangs and datasets.
    """

    UNSCHEDULABLE = "Unschedulable"
    """It fits on no node: a new one may help."""
    QUOTA = "WaitingForQuota"
    GANG = "WaitingForGang"
    """Other pods of its gang do not exist yet."""
    POD_GROUP = "WaitingForPodGroup"
    """Its PodGroup of Kubernetes is not known."""
    TURN = "WaitingForTurn"
    """An older unit of its team, which needs more, has waited long."""
    PREEMPTION = "WaitingForPreemption"
    """The pods that it preempts still run."""
    JOB = "WaitingForJob"
    """The job after which it starts (`after`) has not ended."""
    DATASET = "WaitingForDataset"
    """A dataset is not in the cache yet."""
    GROWTH = "WaitingToGrow"
    """Its elastic gang runs; it takes what is free."""
    UNSUPPORTED = "Unsupported"
    """No node can run it with this scheduler."""
    ERROR = "SchedulerError"
    """The scheduler or the API server failed; Kubernetes' own name (`PodReasonSchedulerError`)."""
