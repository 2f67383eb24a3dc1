"""Every pod of every example would start, and each property of `tests.startup` rejects a pod that it must reject."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.example_trees import EXAMPLES
from tests.startup import (
    PROPERTIES,
    Body,
    Pod,
    accounts,
    all_pods,
    checkpoints,
    claims,
    commands,
    config_maps,
    device_claims,
    directories,
    fields,
    gpus,
    home,
    image,
    mounts,
    pods,
    ports,
    priorities,
    probes,
    user,
    user_containers,
)


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
@pytest.mark.parametrize("example", [name for name in EXAMPLES if name != "import"])  # its pods run already
def test_would_start(example: str, holds: Callable[[Pod], Iterator[str]]) -> None:
    assert pods(example)
    assert [f"{pod.where}: {problem}" for pod in pods(example) for problem in holds(pod)] == []


# -- each property rejects what it must ----------------------------------------------------------------------------


def find(part: str) -> Pod:
    """A copy of the pod of `ava` whose object has this text in its name."""
    pod = next(pod for pod in pods("ava") if part in pod.where)
    return pod._replace(spec=copy.deepcopy(pod.spec), annotations=dict(pod.annotations))


def main(pod: Pod) -> Body:
    return next(user_containers(pod), pod.spec["containers"][0])


def drop(pod: Pod, name: str) -> None:
    """Remove the mounts of a volume."""
    for container in pod.containers:
        container["volumeMounts"] = [m for m in container.get("volumeMounts", ()) if m["name"] != name]


def unset(pod: Pod, name: str) -> None:
    main(pod)["env"] = [entry for entry in main(pod)["env"] if entry["name"] != name]


RESNET, SERVER = "Job vision/resnet50-worker", "Job ads/ctr-deepfm-server"
BREAKS: list[tuple[Callable[[Pod], Iterator[str]], str, Callable[[Pod], Any]]] = [
    (image, RESNET, lambda pod: main(pod).pop("image")),
    (user, RESNET, lambda pod: pod.spec["securityContext"].update(runAsUser=0)),
    (user, RESNET, lambda pod: pod.spec["securityContext"].pop("runAsUser")),
    (user, RESNET, lambda pod: pod.spec["securityContext"].pop("fsGroup")),
    (home, "Deployment vision/classify", lambda pod: unset(pod, "HOME")),
    (home, "Deployment vision/classify", lambda pod: unset(pod, "USER")),
    (home, "Deployment vision/classify", lambda pod: drop(pod, "home")),
    (mounts, RESNET, lambda pod: drop(pod, "logs")),
    (mounts, RESNET, lambda pod: main(pod)["volumeMounts"].append({"name": "no", "mountPath": "/no"})),
    (mounts, RESNET, lambda pod: main(pod)["volumeMounts"].append({"name": "home", "mountPath": "/data/x"})),
    (mounts, RESNET, lambda pod: main(pod)["volumeMounts"].append({"name": "home", "mountPath": "/data"})),
    (claims, RESNET, lambda pod: pod.world.found.pop(("PersistentVolumeClaim", "vision", "resnet50-logs"))),
    (claims, RESNET, lambda pod: pod.world.classes.clear()),
    (directories, RESNET, lambda pod: [c["command"].clear() for p in all_pods(pod.world) for c in creators(p)]),
    (config_maps, RESNET, lambda pod: pod.world.found.pop(("ConfigMap", "vision", "resnet50-rendezvous"))),
    (fields, SERVER, lambda pod: pod.annotations.clear()),
    (fields, RESNET, lambda pod: main(pod)["env"].insert(0, {"name": "EARLY", "value": "$(PET_NNODES)"})),
    (accounts, RESNET, lambda pod: pod.spec.update(serviceAccountName="nobody")),
    (accounts, RESNET, lambda pod: pod.spec.update(automountServiceAccountToken=True)),
    (priorities, RESNET, lambda pod: pod.spec.update(priorityClassName="first")),
    (checkpoints, SERVER, lambda pod: drop(pod, "bucket-results")),
    (checkpoints, SERVER, lambda pod: unset(pod, "AVACTL_CHECKPOINT_DIR")),
    (commands, "Deployment avactl-system/avactl-scheduler", lambda pod: main(pod).update(command=["avactl", "cache"])),
    (commands, "Deployment avactl-system/avactl-scheduler", lambda pod: main(pod)["args"].append("--no-such-option")),
    (commands, "DaemonSet avactl-system/avactl-topology-k80", lambda pod: main(pod)["command"].append("now")),
    (ports, "Deployment vision/classify", lambda pod: main(pod).pop("ports")),
    (probes, "Deployment vision/classify", lambda pod: main(pod)["readinessProbe"]["httpGet"].update(port=1)),
    (gpus, "Job vision/places-finetune-worker", lambda pod: unset(pod, "NVIDIA_VISIBLE_DEVICES")),
    (gpus, "StatefulSet vision/li-wei", lambda pod: unset(pod, "NVIDIA_VISIBLE_DEVICES")),
    (gpus, "StatefulSet students/student-02", lambda pod: unset(pod, "NVIDIA_VISIBLE_DEVICES")),
    (device_claims, RESNET, lambda pod: main(pod)["resources"].update(claims=[{"name": "gpus"}])),
]


def creators(pod: Pod) -> list[Body]:
    return [container for container in pod.containers if "/config/prefixes.sh" in container.get("command", ())]


@pytest.fixture
def fresh() -> Iterator[None]:
    """Worlds that no other test has damaged, or will see damaged."""
    for moment in range(2):
        for cached in (pods, all_pods):
            cached.cache_clear()
        if not moment:
            yield


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("holds", "name", "damage"), BREAKS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_damaged_pod_is_found(holds: Callable[[Pod], Iterator[str]], name: str, damage: Callable[[Pod], Any]) -> None:
    pod = find(name)
    assert list(holds(pod)) == []
    damage(pod)
    assert list(holds(pod)) != []


def test_every_property_is_tried() -> None:
    assert {holds for holds, _, _ in BREAKS} == set(PROPERTIES)
