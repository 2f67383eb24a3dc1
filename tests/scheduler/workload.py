"""Work of three teams that comes and goes at random, on machines that do so too."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import Any

from tests.scheduler.auditor import API, ENDS_AFTER, GPUS, GPUS_OF_CLAIMS, HALF, Object, patient
from tests.scheduler.world import SYSTEM, World
from tools.waiting import patience

TEAMS = {"vision": (32, 16), "speech": (24, 24), "guest": (0, 60)}
"""GPUs that are guaranteed, and those that may be borrowed."""
PLAIN = [f"p{number}" for number in range(6)]
"""Machines whose GPUs a device plugin hands out."""
HALVES = {"d0": True, "d1": True, "d2": False, "d3": False}
"""Machines with ResourceSlices, and whether their GPUs can be halved."""
MACHINES = [*PLAIN, *HALVES]
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
        self._sick: set[str] = set()
        """Machines without some of their GPUs, as far as the API server is told."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.errors: list[BaseException] = []
        self.spaces = {f"{world.namespace}-{team}": team for team in TEAMS}
        self.limits = {space: sum(TEAMS[team]) for space, team in self.spaces.items()}
        self.guaranteed = {space: TEAMS[team][0] for space, team in self.spaces.items()}
        self._others = f"{world.namespace}-others"
        """Namespace of another scheduler's pods."""

    # -- its turn ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Workload:
        self._space(self._others)
        for space, team in self.spaces.items():
            self._space(space)
            guaranteed, borrow = TEAMS[team]
            gpus = [{"gpu": "V100", "guaranteed": guaranteed, "borrow": borrow, "weight": 1}]
            quota = {"version": 1, "team": team, "namespaces": [space], "gpus": gpus, "shapes": []}
            self._world.config(f"avactl-quota-{team}", "quota", quota)
            budget = {"minAvailable": 1, "selector": {"matchLabels": {"kept": "yes"}}}
            self._create("policy/v1", "PodDisruptionBudget", {"name": "kept", "namespace": space}, spec=budget)
            for gpus_each in (1, 2, 4):
                self._template(space, f"gpus-{gpus_each}", gpus_each, [])
            self._template(space, "near", 2, [{"matchAttribute": f"{DRIVER}/numa", "requests": ["gpus"]}])
            self._template(space, "halves", 1, [], "soak-half")
        for kind in ("gpu", "half"):
            selectors = [
                {
                    "cel": {
                        "expression": f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'
                    }
                }
            ]
            self._create(API, "DeviceClass", {"name": f"soak-{kind}"}, spec={"selectors": selectors})
        for name in MACHINES:
            self._machine(name)
        for name in HALVES:
            self._slices(name)
        self._by_others()
        self._world.ready()
        self._thread.start()
        return self

    def _space(self, name: str) -> None:
        self._create("v1", "Namespace", {"name": name})
        account = {"name": "default", "namespace": name}
        patient(lambda: self._kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}))

    def _slices(self, name: str) -> None:
        """What the driver publishes of a machine."""
        halves, devices = HALVES[name], list[Object]()
        for gpu in range(GPUS):
            attributes = {"model": {"string": "V100"}, "numa": {"int": gpu // 4}}
            device: Object = {"name": f"gpu-{gpu}"}
            device["attributes"] = {**attributes, "type": {"string": "gpu"}, "index": {"int": gpu}}
            devices.append(device)
            if halves:
                device["consumesCounters"] = _counters(gpu, 2)
                for half in range(2):
                    more = {
                        "attributes": {**attributes, "type": {"string": "half"}},
                        "consumesCounters": _counters(gpu, 1),
                    }
                    devices.append({"name": f"gpu-{gpu}{HALF}{half}", **more})
        pool = {"name": name, "generation": 1, "resourceSliceCount": 2 if halves else 1}
        spec = {"nodeName": name, "driver": DRIVER, "pool": pool}
        self._create(API, "ResourceSlice", {"name": name}, spec={**spec, "devices": devices})
        if halves:
            counters = [{"name": f"gpu-{gpu}", "counters": {"halves": {"value": "2"}}} for gpu in range(GPUS)]
            self._create(API, "ResourceSlice", {"name": f"{name}-counters"}, spec={**spec, "sharedCounters": counters})

    def _by_others(self) -> None:
        """Pods of another scheduler hold GPUs from the beginning: by a device plugin that tells nobody which, and by a
        claim."""
        for name in ("p0", "p1"):
            body = self._body(3)
            body["spec"] |= {"schedulerName": "another", "nodeName": name}
            body["metadata"] = {"labels": {"of": "others"}}
            self._bare(self._others, f"on-{name}", body)
        metadata = {"name": "on-d1", "namespace": self._others}
        body = self._body(2, {"resourceClaimName": "on-d1"})
        body["spec"] |= {"schedulerName": "another", "nodeName": "d1"}
        self._create("v1", "Pod", {**metadata, "labels": {GPUS_OF_CLAIMS: "2"}}, spec=body["spec"])
        uid = self._kube.get("v1", "Pod", "on-d1", self._others)["metadata"]["uid"]
        results = [{"request": "gpus", "driver": DRIVER, "pool": "d1", "device": f"gpu-{gpu}"} for gpu in (2, 5)]
        users = [{"resource": "pods", "name": "on-d1", "uid": uid}]
        claim = {"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata}
        self._kube.create({**claim, "spec": {"devices": _devices(2, [])}})
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
        self._kube.patch({**claim, "status": status}, subresource="/status")
        self._works.clear()

    def calm(self) -> None:
        """Nothing comes or goes any more; all machines are there."""
        self._stop.set()
        self._thread.join(patience())
        for name in list(self._sick):
            self._gpus(name, GPUS)
        for name in self._away:
            patient(partial(self._machine, name))
        self._away.clear()
        for node in patient(lambda: self._kube.list("v1", "Node")):
            if node["spec"].get("unschedulable"):
                self._cordon(node["metadata"]["name"], False)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(patience())
        for space, team in self.spaces.items():
            self._kube.delete("v1", "ConfigMap", f"avactl-quota-{team}", SYSTEM)
            for path in ("apis/batch/v1", "apis/apps/v1", "api/v1"):
                plural = {"apis/batch/v1": "jobs", "apis/apps/v1": "deployments", "api/v1": "pods"}[path]
                url = f"/{path}/namespaces/{space}/{plural}"
                patient(partial(self._kube.request, "DELETE", url, query={"propagationPolicy": "Background"}))
            self.let_go(always=True)
            self._kube.delete("v1", "Namespace", space)
        # A next workload allocates the same devices: it must not find them taken until the namespace is gone.
        self._kube.delete(API, "ResourceClaim", "on-d1", self._others)
        self._kube.delete("v1", "Namespace", self._others)
        for kind in ("gpu", "half"):
            self._kube.delete(API, "DeviceClass", f"soak-{kind}")
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
        for share, happen in ((0.06, self._nodes), (0.05, self._plugin), (0.005, self._pool)):
            if draw < share:
                happen()
                return
            draw -= share
        there = sum(len(patient(partial(self._kube.list, "v1", "Pod", space))) for space in self.spaces)
        if draw < 0.09 or there > _MOST:
            self._delete(there)
            return
        makers = (
            self._pod,
            self._pod,
            self._gang,
            self._gang,
            self._elastic,
            self._service,
            self._claim,
            self._claim,
            self._claim_gang,
            self._shared,
            self._loose_gang,
            self._part,
            self._half,
            self._half,
            self._fleeting,
        )
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
        name = self._chance.choice(MACHINES)
        if self._away and self._chance.random() < 0.6:
            back = self._away.pop()
            patient(lambda: self._machine(back))
        elif name not in self._away:
            draw = self._chance.random()
            if draw < 0.2 and not self._away:
                patient(lambda: self._kube.delete("v1", "Node", name))
                self._away.append(name)
                self._sick.discard(name)
            else:
                self._cordon(name, draw < 0.5)

    def _plugin(self) -> None:
        """A driver starts anew, or some of its GPUs are not well for a while. Pods keep theirs."""
        if self._sick:
            self._gpus(next(iter(self._sick)), GPUS)
            return
        name = self._chance.choice([name for name in MACHINES if name not in self._away])
        pause = self._chance.uniform(0.0, 0.5)
        if name in HALVES:
            for each in (name, f"{name}-counters") if HALVES[name] else (name,):
                patient(partial(self._kube.delete, API, "ResourceSlice", each))
            self._stop.wait(pause)
            self._slices(name)
            return
        self._gpus(name, self._chance.choice((0, 0, 4, 6)))
        if self._chance.random() < 0.7:
            self._stop.wait(pause)
            self._gpus(name, GPUS)

    def _gpus(self, name: str, count: int) -> None:
        status = {kind: {"nvidia.com/gpu": str(count)} for kind in ("capacity", "allocatable")}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
        patient(lambda: self._kube.patch(node, subresource="/status"))
        (self._sick.discard if count == GPUS else self._sick.add)(name)

    def _pool(self) -> None:
        """The configuration of the pool is deleted, and made anew."""
        config = patient(lambda: self._kube.find("v1", "ConfigMap", "avactl-pool-v100", SYSTEM))
        metadata = {key: config["metadata"][key] for key in ("name", "namespace", "labels")}
        patient(lambda: self._kube.delete("v1", "ConfigMap", "avactl-pool-v100", SYSTEM))
        self._stop.wait(self._chance.uniform(0.0, 2.0))
        self._create("v1", "ConfigMap", metadata, data=config["data"])

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

    def _template(
        self, space: str, name: str, gpus: int, constraints: list[Object], device_class: str = "soak-gpu"
    ) -> None:
        devices = _devices(gpus, constraints, device_class)
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
            notes[ENDS_AFTER] = f"{chance.randint(3, 25)}s"
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
        body["metadata"]["annotations"].pop(ENDS_AFTER, None)
        body["metadata"]["labels"]["app"] = name
        spec = {"replicas": self._chance.randint(1, 3), "selector": {"matchLabels": {"app": name}}, "template": body}
        self._create("apps/v1", "Deployment", {"name": name, "namespace": space}, spec=spec)
        self._works.append(("apps/v1", "Deployment", space, name))

    def _part(self, space: str) -> None:
        body = self._body(0)
        body["metadata"]["annotations"]["avactl.dev/gpu-share"] = self._chance.choice(("0.25", "0.5", "0.5", "0.7"))
        self._bare(space, self._name("part"), body)

    def _half(self, space: str) -> None:
        self._bare(space, self._name("half"), self._body(0, {"resourceClaimTemplateName": "halves"}))

    def _fleeting(self, _: str) -> None:
        """A gang whose namespace is deleted meanwhile."""
        space, name = f"{self._world.namespace}-{self._name('fleeting')}", "fleeting"
        self._space(space)
        for number in range(3):
            body = self._body(2, gang=(name, 3))
            body["metadata"].pop("finalizers", None)
            self._bare(space, f"{name}-{number}", body)
            self._works.pop()
        self._stop.wait(self._chance.uniform(0.0, 0.5))
        patient(lambda: self._kube.delete("v1", "Namespace", space))

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


def _counters(gpu: int, halves: int) -> list[Object]:
    return [{"counterSet": f"gpu-{gpu}", "counters": {"halves": {"value": str(halves)}}}]


def _devices(count: int, constraints: list[Object], device_class: str = "soak-gpu") -> Object:
    request = {"name": "gpus", "exactly": {"deviceClassName": device_class, "count": count}}
    return {"requests": [request], **({"constraints": constraints} if constraints else {})}
