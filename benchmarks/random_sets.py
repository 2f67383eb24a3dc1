"""Random clusters of a few nodes and pods, covering all scheduling constraints of a pod, to compare two schedulers.

Many sets coexist in one control plane without interaction: labels for spread and affinity have different keys in each
set, and every test pod selects the nodes of its set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from benchmarks.random_storage import ZONES, Storage

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
FPGA, HUGE = "example.com/fpga", "hugepages-2Mi"
FEATURE = "UserNamespacesHostNetworkSupport"
OVERHEAD = "heavy"
"""A RuntimeClass with an overhead, required in the cluster."""
APPS, TIERS, VERSIONS = ("a", "b", "c"), ("front", "back"), ("1", "2")
NUMBERS = ("1", "5", "9", "12", "007", "x", "1_0", "12345678901234567890", "4.5")

Object = dict[str, Any]


class RandomSet(NamedTuple):
    """One set. Every node offers one unit of a resource of its own, by which a pod can be pinned to it (`pinned`)."""

    number: int
    namespaces: tuple[str, ...]
    nodes: list[Object]
    pods: list[Object]
    """Existing pods. With the label `ended` they have ended, with `deleted` they are being deleted."""
    test: Object
    """The pod to be scheduled."""
    storage: list[Object]
    """Volumes, claims, and volume limits of nodes."""

    def pod(self, name: str, scheduler: str, node: str = "") -> Object:
        """Return the pod to be scheduled, with a name, pinned to a node if one is given.

        The pin is a resource request, because spread constraints take node selectors into account.
        """
        test = self.test
        spec = {**test["spec"], "schedulerName": scheduler}
        if node:
            first, *others = spec["containers"]
            given = first.get("resources") or {}
            pin = {f"example.com/{node}": "1"}
            resources = {**given, "requests": {**given.get("requests", {}), **pin}}
            resources["limits"] = {**given.get("limits", {}), **pin}
            spec["containers"] = [{**first, "resources": resources}, *others]
        metadata = {**test["metadata"], "name": f"{name}-{self.number}"}
        metadata["annotations"] = {"example.com/role": "test"}
        return {**test, "metadata": metadata, "spec": spec}


def namespaces(number: int) -> dict[str, dict[str, str]]:
    """Return names and labels of a set's namespaces; equal for all seeds, so that they can be reused."""
    rng = Random(number)
    return {f"s{number}-{each}": _some(rng, {"team": ["t1", "t2"], "kind": ["prod", "test"]}) for each in ("x", "y")}


def random_set(seed: int, number: int) -> RandomSet:
    """Return a set, deterministic in the arguments."""
    return _Maker(Random(f"{seed}/{number}"), number).make()


def _some(rng: Random, choices: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {key: rng.choice(values) for key, values in choices.items() if rng.random() < 0.7}


class _Maker:
    """Generates one set."""

    def __init__(self, rng: Random, number: int) -> None:
        self.rng, self.number = rng, number
        self.zone, self.rack, self.host = (f"example.com/{key}-{number}" for key in ("zone", "rack", "host"))
        self.namespaces = tuple(namespaces(number))
        self.crowd = rng.choice((0.3, 1.0, 2.0))
        """Pods per node."""
        self.wishes = rng.choice((0.25, 0.5, 0.5, 1.0))
        """Density of the pod's constraints: at 1, few pods fit anywhere."""
        self.names = [f"n{number}-{index}" for index in range(rng.randint(1, 6))]
        self.storage = Storage(rng, number, self.namespaces, self.names, self.host)

    def odds(self, chance: float) -> bool:
        return self.rng.random() < chance

    def wants(self, chance: float) -> bool:
        return self.odds(chance * self.wishes)

    def make(self) -> RandomSet:
        rng = self.rng
        count = int(self.crowd * len(self.names) + rng.random() * 2)
        pods = [self.standing(index) for index in range(count)]
        nodes = [self.node(name, index) for index, name in enumerate(self.names)]
        return RandomSet(self.number, self.namespaces, nodes, pods, self.test(), self.storage.objects)

    # -- nodes ------------------------------------------------------------------------------------------------------

    def node(self, name: str, index: int) -> Object:
        rng = self.rng
        labels = {"example.com/set": str(self.number), "kubernetes.io/hostname": name, self.host: name}
        labels |= _some(rng, {"disk": ["ssd", "hdd"], "size": NUMBERS, "gen": NUMBERS[:4]})
        if self.odds(0.85):
            labels[self.zone] = rng.choice("uvw")
        if self.odds(0.7):
            labels[self.rack] = rng.choice("12")
        if self.odds(0.7):
            labels[rng.choice(ZONES)] = rng.choice("uvw")
        amounts = {
            "cpu": rng.choice(("2", "1500m", "4", "8", "0.5")),
            "memory": rng.choice(("2Gi", "2G", "4Gi", "512Mi")),
            "pods": rng.choice(("110", "110", "110", "3", "2", "1")),
            f"example.com/{name}": "1",
        }
        if self.odds(0.7):
            amounts["ephemeral-storage"] = rng.choice(("1Gi", "10Gi"))
        if self.odds(0.5):
            amounts[FPGA] = rng.choice("0124")
        if self.odds(0.4):
            amounts[HUGE] = rng.choice(("0", "64Mi", "256Mi"))
        spec: Object = {"taints": [self.taint(key) for key in ("team", "hard", "tier") if self.wants(0.2)]}
        if self.odds(0.12):
            spec["unschedulable"] = True
        status: Object = {"capacity": amounts, "allocatable": amounts}
        if self.odds(0.5):
            status["declaredFeatures"] = [FEATURE]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": status,
        }

    def taint(self, key: str) -> Object:
        effect = self.rng.choice(("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule"))
        return {"key": key, "effect": effect, **({"value": self.rng.choice("xy")} if self.odds(0.7) else {})}

    # -- pods -------------------------------------------------------------------------------------------------------

    def labels(self) -> dict[str, str]:
        return _some(self.rng, {"app": APPS, "tier": TIERS, "version": VERSIONS})

    def standing(self, index: int) -> Object:
        """Return an existing pod."""
        rng = self.rng
        labels = self.labels()
        if self.odds(0.1):
            labels[rng.choice(("ended", "deleted"))] = "yes"
        spec: Object = {"nodeName": rng.choice(self.names) if self.odds(0.97) else f"ghost-{self.number}"}
        spec["containers"] = [self.container("main", {"cpu": ("100m", "500m", "1"), "memory": ("64Mi", "256Mi")})]
        spec["terminationGracePeriodSeconds"] = 600
        if self.wants(0.3):
            spec["affinity"] = {"podAntiAffinity": {REQUIRED: [self.term(labels) for _ in range(rng.randint(1, 2))]}}
        if self.odds(0.2):
            spec["initContainers"] = [self.sidecar()]
        return self.wrapped(f"there-{self.number}-{index}", labels, spec)

    def wrapped(self, name: str, labels: dict[str, str], spec: Object) -> Object:
        namespace = self.rng.choice(self.namespaces)
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        volumes = self.storage.volumes(namespace, 0.6 if name == "test" else 0.3) if self.odds(0.6) else []
        spec |= {"automountServiceAccountToken": False, "volumes": volumes}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def container(self, name: str, choices: Mapping[str, Sequence[str]], odd: bool = True) -> Object:
        rng = self.rng
        requests = {key: rng.choice(values) for key, values in choices.items() if self.odds(0.6)}
        limits: dict[str, str] = {}
        if odd and self.wants(0.15):
            limits[FPGA] = requests[FPGA] = rng.choice("0123")
        if odd and "cpu" in requests and self.wants(0.2):
            limits[HUGE] = requests[HUGE] = rng.choice(("2Mi", "64Mi", "128Mi"))
        if self.odds(0.1):
            # A missing request defaults to the limit.
            limits["memory"] = "256Mi"
            requests.pop("memory", None)
        found: Object = {"name": name, "image": "registry.example.com/x:1"}
        if requests or limits:
            found["resources"] = {"requests": requests, "limits": limits}
        if self.odds(0.2):
            found["ports"] = [self.port(number) for number in rng.sample(range(8000, 8004), rng.randint(1, 2))]
        return found

    def port(self, number: int) -> Object:
        port: Object = {"containerPort": 80 + number, "protocol": self.rng.choice(("TCP", "TCP", "UDP"))}
        if self.odds(0.85):
            port["hostPort"] = number
            if self.odds(0.4):
                port["hostIP"] = self.rng.choice(("127.0.0.1", "10.0.0.1", "0.0.0.0"))
        return port

    def sidecar(self) -> Object:
        amounts = {"cpu": ("50m", "400m"), "memory": ("32Mi", "300Mi")}
        return {**self.container("sidecar", amounts, odd=False), "restartPolicy": "Always"}

    def test(self) -> Object:
        rng = self.rng
        labels = self.labels()
        amounts = {
            "cpu": ("100m", "0.4", "200m", "1500m"),
            "memory": ("64Mi", "1e8", "600M", "1Gi"),
            **({"ephemeral-storage": ("100Mi", "2Gi")} if self.wants(0.4) else {}),
        }
        spec: Object = {"terminationGracePeriodSeconds": 0}
        spec["containers"] = [self.container(f"main-{index}", amounts) for index in range(rng.choice((1, 1, 2)))]
        initial = []
        for index in range(rng.choice((0, 0, 0, 1, 2))):
            initial.append({**self.container(f"init-{index}", amounts), "ports": []})
        if self.odds(0.2):
            initial.insert(rng.randint(0, len(initial)), self.sidecar())
        spec["initContainers"] = initial
        if self.odds(0.1):
            spec["runtimeClassName"] = OVERHEAD
        if self.wants(0.15):
            spec["resources"] = {"requests": {"cpu": rng.choice(("2", "4")), "memory": "2Gi"}}
        if self.odds(0.06):
            spec["hostNetwork"] = True
            if self.odds(0.5):
                spec["hostUsers"] = False
            for container in (*spec["containers"], *initial):
                for port in container.get("ports", ()):
                    port["hostPort"] = port["containerPort"]
        self.places(spec)
        self.affinity(spec, labels)
        if self.wants(0.6):
            keys = rng.sample([self.zone, self.rack, self.host], rng.choice((1, 1, 2)))
            spec["topologySpreadConstraints"] = [self.spread(key, labels) for key in keys]
        return self.wrapped("test", labels, spec)

    def places(self, spec: Object) -> None:
        """Add selector, node affinity and tolerations."""
        rng = self.rng
        mine = {"key": "example.com/set", "operator": "In", "values": [str(self.number)]}
        terms = []
        if self.wants(0.6):
            for _ in range(rng.choice((1, 2, 3))):
                term: Object = {
                    "matchExpressions": [mine, *(self.expression() for _ in range(rng.choice((0, 1, 1, 2))))]
                }
                if self.odds(0.25):
                    values = [rng.choice(self.names)]
                    operator = rng.choice(("In", "NotIn"))
                    term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": values}]
                terms.append(term)
            if self.odds(0.1):
                terms.append({})
            spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
            if self.odds(0.3):
                preferred = {"weight": 50, "preference": {"matchExpressions": [self.expression(NUMBERS[:4])]}}
                spec["affinity"]["nodeAffinity"][PREFERRED] = [preferred]
        if not terms or self.odds(0.5):
            spec["nodeSelector"] = {"example.com/set": str(self.number)}
            if self.wants(0.2):
                spec["nodeSelector"]["disk"] = rng.choice(("ssd", "hdd"))
        spec["tolerations"] = [self.toleration() for _ in range(rng.choice((0, 0, 1, 2)))]

    def expression(self, bounds: tuple[str, ...] = NUMBERS) -> Object:
        rng = self.rng
        operator = rng.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
        if operator in ("Gt", "Lt"):
            return {"key": rng.choice(("size", "gen")), "operator": operator, "values": [rng.choice(bounds)]}
        expression: Object = {"key": rng.choice(("disk", "size", "nowhere")), "operator": operator}
        if operator in ("In", "NotIn"):
            expression["values"] = rng.sample(["ssd", "hdd", "1", "5"], rng.randint(1, 3))
        return expression

    def toleration(self) -> Object:
        rng = self.rng
        key = rng.choice(("team", "hard", "tier", "node.kubernetes.io/unschedulable", ""))
        operator = rng.choice(("Exists", "Equal", "")) if key else "Exists"
        found: Object = {"operator": operator} if operator else {}
        if key:
            found["key"] = key
        if operator != "Exists":
            found["value"] = rng.choice(("x", "y", ""))
        if self.odds(0.5):
            found["effect"] = rng.choice(("NoSchedule", "NoExecute", "PreferNoSchedule"))
        return found

    # -- where other pods are ---------------------------------------------------------------------------------------

    def affinity(self, spec: Object, labels: dict[str, str]) -> None:
        for kind, chance in (("podAffinity", 0.4), ("podAntiAffinity", 0.5)):
            if not self.wants(chance):
                continue
            terms = [self.term(labels) for _ in range(self.rng.choice((1, 1, 2)))]
            spec.setdefault("affinity", {})[kind] = {REQUIRED: terms}
            if self.odds(0.2):
                spec["affinity"][kind][PREFERRED] = [{"weight": 9, "podAffinityTerm": self.term(labels)}]

    def term(self, labels: dict[str, str]) -> Object:
        """Return a term of pod affinity, often one that the pod itself matches."""
        rng = self.rng
        term: Object = {"topologyKey": rng.choice((self.zone, self.zone, self.rack, self.host))}
        if self.odds(0.95):
            term["labelSelector"] = self.selector(labels)
        if self.odds(0.25):
            term["namespaces"] = rng.sample([*self.namespaces, "nowhere"], rng.randint(1, 2))
        if self.odds(0.3):
            wanted = _some(rng, {"team": ["t1", "t2"], "kind": ["prod", "test"]}) if self.odds(0.7) else {}
            term["namespaceSelector"] = {"matchLabels": wanted} if wanted else {}
        if "labelSelector" in term and self.odds(0.25):
            term[rng.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["version"]
        return term

    def selector(self, labels: dict[str, str]) -> Object:
        rng = self.rng
        if self.odds(0.08):
            return {}
        found: Object = {}
        if self.odds(0.7):
            own = labels.get("app")
            found["matchLabels"] = {"app": own if own and self.odds(0.6) else rng.choice(APPS)}
        if not found or self.odds(0.3):
            operator = rng.choice(("In", "NotIn", "Exists", "DoesNotExist"))
            expression: Object = {"key": "tier", "operator": operator}
            if operator in ("In", "NotIn"):
                expression["values"] = rng.sample(TIERS, rng.randint(1, 2))
            found["matchExpressions"] = [expression]
        return found

    def spread(self, key: str, labels: dict[str, str]) -> Object:
        rng = self.rng
        hard = self.odds(0.85)
        found: Object = {
            "maxSkew": rng.choice((1, 1, 2, 3)),
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
        }
        if self.odds(0.95):
            found["labelSelector"] = self.selector(labels)
            if self.odds(0.2):
                found["matchLabelKeys"] = ["version"]
        if hard and self.odds(0.3):
            found["minDomains"] = rng.randint(1, 4)
        for policy in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if self.odds(0.35):
                found[policy] = rng.choice(("Honor", "Ignore"))
        return found
