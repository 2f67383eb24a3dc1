"""Work of three teams that comes and goes at random, on machines that do so too."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import Any

from tests.scheduler.auditor import API, GPUS_OF_CLAIMS, Object, patient
from tests.scheduler.world import SYSTEM, World

TEAMS = {"vision": (32, 16), "speech": (24, 24), "guest": (0, 60)}
"""GPUs that are guaranteed, and those that may be borrowed."""
PLAIN, CLAIMED = 6, 4
"""Machines whose GPUs a device plugin hands out, and those with ResourceSlices."""
DRIVER = "gpu.example.com"
_SLOW = "example.com/slow"
_MOST = 75
"""Pods, from which on more goes than comes."""
_IMAGE = "registry.example.com/x:1"


class Workload:
    """One seed of it. What it creates bears names of its own."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._chance = world, random.Random(seed)
        self._kube = world.plane.client()
        self._number = 0
        self._works: list[tuple[str, str, str, str]] = []
        self._away: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[BaseException] = []
        self.spaces = {f"{world.namespace}-{team}": team for team in TEAMS}
        self.limits = {space: sum(TEAMS[team]) for space, team in self.spaces.items()}

    # -- its turn ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Workload:
        for space, team in self.spaces.items():
            self._create("v1", "Namespace", {"name": space})
            account = {"name": "default", "namespace": space}
            self._kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
            guaranteed, borrow = TEAMS[team]
            gpus = [{"gpu": "V100", "guaranteed": guaranteed, "borrow": borrow, "weight": 1}]
            quota = {"version": 1, "team": team, "namespaces": [space], "gpus": gpus, "shapes": []}
            self._world.config(f"avactl-quota-{team}", "quota", quota)
            budget = {"minAvailable": 1, "selector": {"matchLabels": {"kept": "yes"}}}
            self._create("policy/v1", "PodDisruptionBudget", {"name": "kept", "namespace": space}, spec=budget)
            for gpus_each in (1, 2, 4):
                self._template(space, f"gpus-{gpus_each}", gpus_each, [])
            self._template(space, "near", 2, [{"matchAttribute": f"{DRIVER}/numa", "requests": ["gpus"]}])
        selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
        self._create(API, "DeviceClass", {"name": "soak-gpu"}, spec={"selectors": selectors})
        for number in range(PLAIN):
            self._machine(f"p{number}")
        for number in range(CLAIMED):
            name = f"d{number}"
            self._machine(name)
            devices = [
                {
                    "name": f"gpu-{gpu}",
                    "attributes": {"model": {"string": "V100"}, "index": {"int": gpu}, "numa": {"int": gpu // 4}},
                }
                for gpu in range(8)
            ]
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"nodeName": name, "driver": DRIVER, "pool": pool, "devices": devices}
            self._create(API, "ResourceSlice", {"name": name}, spec=spec)
        self._world.ready()
        self._thread.start()
        return self

    def calm(self) -> None:
        """Nothing comes or goes any more; all machines are there."""
        self._stop.set()
        self._thread.join(60)
        for name in self._away:
            patient(partial(self._machine, name))
        self._away.clear()
        for node in patient(lambda: self._kube.list("v1", "Node")):
            if node["spec"].get("unschedulable"):
                self._cordon(node["metadata"]["name"], False)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        for space, team in self.spaces.items():
            self._kube.delete("v1", "ConfigMap", f"avactl-quota-{team}", SYSTEM)
            for path in ("apis/batch/v1", "apis/apps/v1", "api/v1"):
                plural = {"apis/batch/v1": "jobs", "apis/apps/v1": "deployments", "api/v1": "pods"}[path]
                url = f"/{path}/namespaces/{space}/{plural}"
                patient(partial(self._kube.request, "DELETE", url, query={"propagationPolicy": "Background"}))
            self.let_go(always=True)
            self._kube.delete("v1", "Namespace", space)
        self._kube.delete(API, "DeviceClass", "soak-gpu")
        self._kube.request("DELETE", f"/apis/{API}/resourceslices")
        self._kube.close()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._chance.uniform(0.05, 0.3)):
                self._step()
        except BaseException as error:  # told by the test
            self.errors.append(error)

    # -- what happens -----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.let_go()
        draw = self._chance.random()
        if draw < 0.06:
            self._nodes()
            return
        there = sum(len(patient(partial(self._kube.list, "v1", "Pod", space))) for space in self.spaces)
        if draw < 0.15 or there > _MOST:
            self._delete(there)
            return
        makers = (
            self._pod, self._pod, self._gang, self._gang, self._elastic, self._service, self._claim, self._claim,
            self._claim_gang, self._shared, self._loose_gang,
        )  # fmt: skip
        self._chance.choice(makers)(self._chance.choice(list(self.spaces)))

    def let_go(self, always: bool = False) -> None:
        """What kubelets do: pods that end have failed then, some at once and some later."""
        for space in self.spaces:
            for pod in patient(partial(self._kube.list, "v1", "Pod", space)):
                ending = "deletionTimestamp" in pod["metadata"] or always
                if ending and (always or self._chance.random() < 0.5):
                    self._end(pod)

    def _end(self, pod: Object) -> None:
        name = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
        if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            failed = {"apiVersion": "v1", "kind": "Pod", "metadata": name, "status": {"phase": "Failed"}}
            patient(lambda: self._kube.patch(failed, subresource="/status"))
        finalizers = pod["metadata"].get("finalizers") or []
        if _SLOW in finalizers:
            left = {**name, "finalizers": [each for each in finalizers if each != _SLOW] or None}
            patient(lambda: self._kube.patch({"apiVersion": "v1", "kind": "Pod", "metadata": left}))

    def _nodes(self) -> None:
        name = self._chance.choice([f"p{number}" for number in range(PLAIN)] + [f"d{n}" for n in range(CLAIMED)])
        if self._away and self._chance.random() < 0.6:
            back = self._away.pop()
            patient(lambda: self._machine(back))
        elif name not in self._away:
            draw = self._chance.random()
            if draw < 0.2 and not self._away:
                patient(lambda: self._kube.delete("v1", "Node", name))
                self._away.append(name)
            else:
                self._cordon(name, draw < 0.5)

    def _cordon(self, name: str, closed: bool) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"unschedulable": closed}}
        patient(lambda: self._kube.patch(node))

    def _delete(self, there: int) -> None:
        space = self._chance.choice(list(self.spaces))
        pods = patient(lambda: self._kube.list("v1", "Pod", space))
        if pods and self._chance.random() < 0.25:
            # By somebody's hand: whoever made it makes it anew.
            name = self._chance.choice(pods)["metadata"]["name"]
            patient(lambda: self._kube.delete("v1", "Pod", name, space))
            return
        for _ in range(1 + max(0, there - _MOST) // 6):
            if self._works:
                version, kind, space, name = self._works.pop(self._chance.randrange(len(self._works)))
                patient(partial(self._kube.delete, version, kind, name, space))

    # -- machines and works -----------------------------------------------------------------------------------------

    def _machine(self, name: str) -> None:
        plain, labels = name.startswith("p"), {"example.com/rack": f"r{int(name[1:]) // 3}"}
        if plain:
            self._world.node(name, labels=labels)
        else:
            self._world.node(name, gpus=0, pool="", labels={**labels, "avactl.dev/gpu": "V100"})

    def _create(self, version: str, kind: str, metadata: Object, **more: Any) -> None:
        item = {"apiVersion": version, "kind": kind, "metadata": metadata, **more}
        patient(lambda: self._kube.create(item))

    def _template(self, space: str, name: str, gpus: int, constraints: list[Object]) -> None:
        devices = _devices(gpus, constraints)
        metadata = {"name": name, "namespace": space}
        self._create(API, "ResourceClaimTemplate", metadata, spec={"spec": {"devices": devices}})

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}"

    def _body(self, gpus: int, claims: Object | None = None, gang: tuple[str, int] | None = None) -> Object:
        """A pod without its name."""
        chance = self._chance
        requests = {"cpu": str(chance.choice((1, 2, 4, 8))), "memory": "1Gi"}
        limits: dict[str, str] = {}
        labels, notes = {"kept": chance.choice(("yes", "no"))}, dict[str, str]()
        if claims:
            labels[GPUS_OF_CLAIMS] = str(gpus)
        elif gpus:
            limits = {"nvidia.com/gpu": str(gpus)}
        if gang:
            labels["avactl.dev/gang"], notes["avactl.dev/gang-size"] = gang[0], str(gang[1])
        if chance.random() < 0.1:
            notes["avactl.dev/preemptible"] = "false"
        if chance.random() < 0.3:
            notes["pod-complete.stage.kwok.x-k8s.io/delay"] = f"{chance.randint(3, 25)}s"
        resources = {"requests": {**requests, **limits}, "limits": limits}
        spec: Object = {"schedulerName": "avactl", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
        spec["containers"] = [{"name": "main", "image": _IMAGE, "resources": resources}]
        spec["priorityClassName"] = chance.choice(("", "", "avactl-low", "avactl-serving"))
        if claims:
            spec["resourceClaims"] = [{"name": "gpus", **claims}]
        metadata: Object = {"labels": labels, "annotations": notes}
        if chance.random() < 0.2:
            metadata["finalizers"] = [_SLOW]
        return {"metadata": metadata, "spec": spec}

    def _bare(self, space: str, name: str, body: Object) -> None:
        metadata = {**body["metadata"], "name": name, "namespace": space}
        self._create("v1", "Pod", metadata, spec=body["spec"])
        self._works.append(("v1", "Pod", space, name))

    def _job(self, space: str, name: str, pods: int, body: Object) -> None:
        ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        spec = {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "podReplacementPolicy": "Failed"}
        spec |= {"podFailurePolicy": {"rules": [ignore]}, "backoffLimit": 1000, "template": body}
        self._create("batch/v1", "Job", {"name": name, "namespace": space}, spec=spec)
        self._works.append(("batch/v1", "Job", space, name))

    def _pod(self, space: str) -> None:
        self._bare(space, self._name("pod"), self._body(self._chance.choice((0, 1, 1, 2, 4, 8))))

    def _gang(self, space: str) -> None:
        name, size = self._name("gang"), self._chance.randint(2, 4)
        self._job(space, name, size, self._body(self._chance.choice((2, 4, 8)), gang=(name, size)))

    def _elastic(self, space: str) -> None:
        name = self._name("elastic")
        self._job(space, name, self._chance.randint(3, 4), self._body(self._chance.choice((1, 2)), gang=(name, 2)))

    def _loose_gang(self, space: str) -> None:
        name, size = self._name("loose"), self._chance.randint(2, 3)
        for number in range(size):
            self._bare(space, f"{name}-{number}", self._body(self._chance.choice((1, 4)), gang=(name, size)))

    def _service(self, space: str) -> None:
        name = self._name("service")
        body = self._body(self._chance.choice((1, 2)))
        body["spec"] |= {"restartPolicy": "Always", "priorityClassName": "avactl-serving"}
        body["metadata"]["annotations"].pop("pod-complete.stage.kwok.x-k8s.io/delay", None)
        body["metadata"]["labels"]["app"] = name
        spec = {"replicas": self._chance.randint(1, 3), "selector": {"matchLabels": {"app": name}}, "template": body}
        self._create("apps/v1", "Deployment", {"name": name, "namespace": space}, spec=spec)
        self._works.append(("apps/v1", "Deployment", space, name))

    def _some_template(self) -> tuple[int, Object]:
        gpus, name = self._chance.choice(((1, "gpus-1"), (2, "gpus-2"), (4, "gpus-4"), (2, "near")))
        return gpus, {"resourceClaimTemplateName": name}

    def _claim(self, space: str) -> None:
        self._bare(space, self._name("claim"), self._body(*self._some_template()))

    def _claim_gang(self, space: str) -> None:
        name, size = self._name("claims"), self._chance.randint(2, 3)
        self._job(space, name, size, self._body(*self._some_template(), gang=(name, size)))

    def _shared(self, space: str) -> None:
        name, gpus = self._name("shared"), self._chance.choice((1, 2))
        self._create(API, "ResourceClaim", {"name": name, "namespace": space}, spec={"devices": _devices(gpus, [])})
        for number in range(self._chance.randint(2, 3)):
            self._bare(space, f"{name}-{number}", self._body(gpus, {"resourceClaimName": name}))
        self._works.append((API, "ResourceClaim", space, name))


def _devices(gpus: int, constraints: list[Object]) -> Object:
    request = {"name": "gpus", "exactly": {"deviceClassName": "soak-gpu", "count": gpus}}
    return {"requests": [request], **({"constraints": constraints} if constraints else {})}
