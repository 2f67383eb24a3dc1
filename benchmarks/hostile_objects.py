"""Objects that a team member, a broken controller or a broken kubelet may write, at random and as odd as possible."""

from __future__ import annotations

import json
import random
import string
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tools.controlplane import ApiError, KubeClient

SYSTEM = "avactl-system"
_IMAGE = "registry.example.com/x:1"
_ANNOTATIONS = (
    "avactl.dev/gpu-share",
    "avactl.dev/devices",
    "avactl.dev/link",
    "avactl.dev/link-policy",
    "avactl.dev/preemptible",
    "avactl.dev/gang-size",
    "avactl.dev/within",
    "avactl.dev/checkpoint-every",
    "batch.kubernetes.io/job-completion-index",
)
_NUMBERS = ("1e-99999999", "1e99999999", "9" * 5000, "-1", "0", "0.5", "NaN", "inf", "²", "٣", "1_000", "0x10", "1e3")
_SELECTORS = (
    "device.driver == 'gpu.example.com'",
    "[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].exists(c, a + b + c == 3)))",
    "device.attributes['gpu.example.com'].name.matches('(x+x+)+y')",
    "semver('1.0.0-" + "1" * 60 + "').major() == 1",
    "cel.bind(a, 'xxxxxxxx', cel.bind(b, a + a, cel.bind(c, b + b, c == a)))",
    "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('1e30'))",
    "!" * 9 + "true",
    "+".join(["1"] * 200) + " == 200",
)


_NOISE = "".join(random.Random(0).choices(string.printable + "\u202e\U0001f600é", k=40_000))


class Hostile:
    """Makes them. What the API server refuses is counted by its kind, and does no harm."""

    def __init__(self, kube: KubeClient, namespace: str, chance: random.Random) -> None:
        """The namespace is made, with a quota in the scheduler's books."""
        self._kube, self.space, self._chance = kube, namespace, chance
        self.made = 0
        self.refused: Counter[str] = Counter()
        self._nodes: list[str] = []
        self._number = 0
        self._kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.space}})
        account = {"name": "default", "namespace": self.space}
        self._kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        limit = {"gpu": "V100", "guaranteed": 0, "borrow": 16, "weight": 1}
        quota = {
            "version": 1,
            "team": namespace,
            "namespaces": [self.space],
            "gpus": [limit],
            "shapes": [],
            "cpu": 64.0,
        }
        self._quota = f"avactl-quota-{namespace}"
        metadata = {"name": self._quota, "namespace": SYSTEM, "labels": {"avactl.dev/config": "quota"}}
        data = {"quota.json": json.dumps(quota)}
        kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

    def make(self, count: int) -> None:
        """Create this many objects one after the other; those that the API server refuses count too."""
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._pod, 80),
            (self._gang, 6),
            (self._claim, 6),
            (self._volume_claim, 4),
            (self._budget, 2),
            (self._config, 2),
            (self._node, 1),
        ]
        makers, weights = [maker for maker, _ in kinds], [weight for _, weight in kinds]
        end = self.made + self.refused.total() + count
        while self.made + self.refused.total() < end:
            maker = self._chance.choices(makers, weights)[0]
            try:
                maker()
            except ApiError as error:
                self.refused[f"{maker.__name__} {error.status}"] += 1

    def clean(self) -> None:
        """Remove what is not in the namespace of the test, and stop."""
        for name in self._nodes:
            with suppress(ApiError):
                self._kube.delete("v1", "Node", name)
        self._kube.delete("v1", "ConfigMap", self._quota, SYSTEM)
        with suppress(ApiError):
            self._kube.request(
                "DELETE", f"/api/v1/namespaces/{SYSTEM}/configmaps", query={"labelSelector": "test=hostile"}
            )
            self._kube.request("DELETE", f"/api/v1/namespaces/{self.space}/pods", body={"gracePeriodSeconds": 0})
            self._kube.delete("v1", "Namespace", self.space)

    # -- texts ------------------------------------------------------------------------------------------------------

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}" + "x" * self._chance.choice((0, 0, 0, 180))

    def _text(self) -> str:
        pick = self._chance.random()
        if pick < 0.4:
            return self._chance.choice(_NUMBERS)
        if pick < 0.6:
            return ",".join(str(self._chance.randrange(20)) for _ in range(self._chance.choice((1, 8, 3000))))
        begin = self._chance.randrange(20_000)
        return _NOISE[begin : begin + self._chance.choice((0, 3, 70, 20_000))]

    def _many(self, small: int, large: int) -> int:
        return self._chance.choice((0, 1, small, small, large))

    # -- objects ----------------------------------------------------------------------------------------------------

    def _spec(self) -> dict[str, Any]:
        chance = self._chance
        requests = {"cpu": chance.choice(("1m", "1", "9E", "0")), "memory": chance.choice(("1Mi", "9E", "1m"))}
        limits = {}
        if chance.random() < 0.5:
            limits["nvidia.com/gpu"] = requests["nvidia.com/gpu"] = str(chance.choice((1, 2, 8, 17, 2**31, 2**62)))
        if chance.random() < 0.1:
            limits[f"example.com/r{chance.randrange(10_000)}"] = "1"
        requests |= limits
        container = {"name": "main", "image": _IMAGE, "resources": {"requests": requests, "limits": limits}}
        spec: dict[str, Any] = {
            "schedulerName": chance.choice(("avactl", "avactl", "avactl", "default-scheduler")),
            "containers": [{**container, "name": f"c{number}"} for number in range(chance.choice((1, 1, 1, 3, 600)))],
            "terminationGracePeriodSeconds": chance.choice((0, 30, 2**62)),
        }
        if chance.random() < 0.3:
            spec["nodeName"] = f"n{chance.randrange(6, 9)}"  # machines that honest pods can do without
        if chance.random() < 0.3:
            spec["affinity"] = self._affinity()
        if chance.random() < 0.2:
            spec["tolerations"] = [
                {"key": f"k{number}", "operator": chance.choice(("Exists", "Equal"))}
                for number in range(self._many(5, 3000))
            ]
        if chance.random() < 0.2:
            spec["volumes"] = [self._pod_volume(number) for number in range(self._many(3, 600))]
        if chance.random() < 0.2:
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": chance.choice((1, 2**31 - 1)),
                    "topologyKey": f"example.com/t{number}",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": self._selector(),
                }
                for number in range(self._many(2, 40))
            ]
        if chance.random() < 0.1:
            spec["resourceClaims"] = [
                {"name": f"r{number}", "resourceClaimName": f"claim-{chance.randrange(60)}"}
                for number in range(chance.choice((1, 2, 200)))
            ]
        return spec

    def _selector(self) -> dict[str, Any]:
        chance = self._chance
        return {
            "matchLabels": {f"l{number}": "v" for number in range(self._many(2, 200))},
            "matchExpressions": [
                {"key": f"e{number}", "operator": "In", "values": [f"v{each}" for each in range(1 + self._many(3, 99))]}
                for number in range(chance.choice((0, 1, 1, 90)))
            ],
        }

    def _affinity(self) -> dict[str, Any]:
        chance = self._chance
        expressions = [
            {
                "key": f"k{number}",
                "operator": chance.choice(("Gt", "Lt", "In", "NotIn")),
                "values": [chance.choice(("5", "x" * 50))],
            }
            for number in range(1 + self._many(3, 900))
        ]
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}] * chance.choice((1, 1, 40))}
        pods = [
            {
                "topologyKey": chance.choice(("kubernetes.io/hostname", "kubernetes.io/os", "example.com/no")),
                "labelSelector": self._selector(),
                **chance.choice(({}, {}, {"namespaces": [f"n{each}" for each in range(self._many(2, 300))]})),
            }
            for _ in range(self._many(2, 60))
        ]
        key = "requiredDuringSchedulingIgnoredDuringExecution"
        kinds = {"nodeAffinity": {key: terms}, "podAntiAffinity": {key: pods}, "podAffinity": {key: pods}}
        kind = chance.choice(list(kinds))
        return {kind: kinds[kind]}

    def _pod_volume(self, number: int) -> dict[str, Any]:
        source: dict[str, Any] = self._chance.choice(
            (
                {"emptyDir": {}},
                {"persistentVolumeClaim": {"claimName": f"pvc-{self._chance.randrange(40)}"}},
                {"iscsi": {"targetPortal": "127.0.0.1", "iqn": "iqn.x:" + "y" * 10_000, "lun": 0}},
                {"rbd": {"monitors": [f"m{each}" for each in range(500)], "image": "i"}},
                {"ephemeral": {"volumeClaimTemplate": {"spec": self._claim_spec()}}},
            )
        )
        return {"name": f"v{number}", **source}

    def _claim_spec(self) -> dict[str, Any]:
        size = self._chance.choice(("1Gi", "9E", "1m", "1e3"))
        return {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            "storageClassName": "x" * self._chance.choice((1, 60)),
            "selector": self._selector(),
        }

    def _create(self, version: str, kind: str, name: str, labels: dict[str, str] | None = None, **more: Any) -> None:
        notes = more.pop("annotations", {})
        metadata = {"name": name, "namespace": self.space, "labels": labels or {}, "annotations": notes}
        self._post({"apiVersion": version, "kind": kind, "metadata": metadata, **more})

    def _post(self, item: dict[str, Any]) -> None:
        self._kube.create(item)
        self.made += 1

    def _pod(self) -> None:
        chance = self._chance
        notes = {name: self._text() for name in _ANNOTATIONS if chance.random() < 0.25}
        labels = {f"l{number}": "v" for number in range(self._many(3, 2000))}
        if chance.random() < 0.2:
            labels |= {"avactl.dev/gang": f"g{chance.randrange(5)}"}
        if chance.random() < 0.1:
            labels |= {"avactl.dev/gang-size": chance.choice(("4", "x", "999999999"))}
        self._create("v1", "Pod", self._name("p"), labels, annotations=notes, spec=self._spec())

    def _gang(self) -> None:
        """Whose pods all ask for something else."""
        name = self._name("gang")[:60]
        for number in range(self._chance.choice((3, 80))):
            container = {
                "name": "main",
                "image": _IMAGE,
                "resources": {"requests": {"cpu": f"{number + 1}m"}},
            }
            notes = {"avactl.dev/gang-size": str(self._chance.choice((2, 3, 80, 999_999_999)))}
            spec = {"schedulerName": "avactl", "containers": [container]}
            pod = f"{name}-{number}".lower()
            self._create("v1", "Pod", pod, {"avactl.dev/gang": name}, annotations=notes, spec=spec)

    def _claim(self) -> None:
        self._number += 1
        requests = [
            {
                "name": f"r{number}",
                "exactly": {
                    "deviceClassName": "none",
                    "selectors": [{"cel": {"expression": self._chance.choice(_SELECTORS)}}],
                    "count": self._chance.choice((1, 32)),
                },
            }
            for number in range(self._chance.choice((1, 8)))
        ]
        self._create(
            "resource.k8s.io/v1",
            "ResourceClaim",
            f"claim-{self._number % 60}",
            spec={"devices": {"requests": requests}},
        )

    def _volume_claim(self) -> None:
        self._number += 1
        notes = {
            "volume.beta.kubernetes.io/storage-class": self._text(),
            "volume.kubernetes.io/selected-node": self._text(),
        }
        self._create(
            "v1", "PersistentVolumeClaim", f"pvc-{self._number % 40}", annotations=notes, spec=self._claim_spec()
        )

    def _budget(self) -> None:
        least = self._chance.choice((1, "50%", "9" * 9, 2**31 - 1))
        self._create(
            "policy/v1",
            "PodDisruptionBudget",
            self._name("b")[:60],
            spec={"minAvailable": least, "selector": self._selector()},
        )

    def _config(self) -> None:
        """Write a malformed ConfigMap, as an administrator of the system namespace might by mistake."""
        self._number += 1
        kind = self._chance.choice(("topology", "quota", "other", ""))
        count = self._chance.choice(("1e300", "1e400", "9223372036854775807", "-1", '"8"'))
        limit = f'{{"gpu": "V100", "guaranteed": {count}, "borrow": {count}, "weight": {count}}}'
        text = self._chance.choice(
            (
                "",
                "{",
                "[" * 20_000,
                "null",
                '{"pool": "v100"}',
                '{"team": 1}',
                '"' + "x" * 200_000 + '"',
                f'{{"pool": "x", "allocation": {{"method": "dra"}}, "machine": {{"gpus": {{"count": {count}}}}}}}',
                f'{{"team": "x", "namespaces": [], "shapes": [], "gpus": [{limit}]}}',
            )
        )
        metadata = {
            "name": f"{self.space}-{self._number}",
            "namespace": SYSTEM,
            "labels": {"avactl.dev/config": kind, "test": "hostile"},
        }
        data = {self._chance.choice(("pool.json", "quota.json")): text}
        self._post({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})

    def _node(self) -> None:
        """A machine whose kubelet has lost its mind. It is cordoned: it takes no honest pod."""
        name = f"{self.space}-{self._number}"
        amounts = {
            "cpu": self._chance.choice(("9E", "0")),
            "memory": "9E",
            "pods": "9E",
            "nvidia.com/gpu": str(self._chance.choice((0, 17, 2**62))),
            **{f"example.com/{self._number}-{each}": "9E" for each in range(self._chance.choice((1, 300)))},
        }
        labels = {"avactl.dev/pool": self._chance.choice(("v100", "none")), "avactl.dev/gpu": "x" * 63}
        labels |= {f"example.com/l{each}": "v" for each in range(self._many(2, 500))}
        self._nodes.append(name)
        self._post(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": {"unschedulable": True},
                "status": {"capacity": amounts, "allocatable": amounts},
            }
        )
