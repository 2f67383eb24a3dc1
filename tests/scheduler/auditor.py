"""An auditor of its own: reads the API and nothing else, and says what should never be."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import orjson

from avactl.kube.client import UnreachableError
from tools.controlplane import ApiError, ControlPlane, KubeClient

Object = dict[str, Any]
API = "resource.k8s.io/v1"
CPUS = 64
GPUS = 8
"""Of each machine."""
GPUS_OF_CLAIMS = "soak.example.com/gpus"
"""Label of pods: the GPUs that their own claims have."""
HALF = "-half-"
"""In the names of devices that are half of the GPU before it."""
ENDS_AFTER = "pod-complete.stage.kwok.x-k8s.io/delay"
"""Annotation of pods that end by themselves."""
_ENDED = ("Succeeded", "Failed")


def alive(pod: Object) -> bool:
    """Whether it holds what it asked for."""
    return bool(pod["spec"].get("nodeName")) and pod.get("status", {}).get("phase") not in _ENDED


def amount(pod: Object, resource: str) -> int:
    """What its one container requests."""
    return int(pod["spec"]["containers"][0]["resources"].get("requests", {}).get(resource, 0))


def name_of(item: Object) -> str:
    """`namespace/name`."""
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def share_of(pod: Object) -> float:
    """The part of one GPU that it shares; 0: it does not."""
    return float(pod["metadata"].get("annotations", {}).get("avactl.dev/gpu-share", 0))


def numbers_of(pod: Object) -> list[str]:
    """The GPUs that a pod was told to use."""
    text = pod["metadata"].get("annotations", {}).get("avactl.dev/devices", "")
    return [gpu for gpu in text.split(",") if gpu]


def claims_of(pod: Object) -> list[str]:
    """Its claims that were made, by name."""
    made = {each["name"]: each.get("resourceClaimName") for each in pod["status"].get("resourceClaimStatuses") or ()}
    found = (
        each.get("resourceClaimName") or made.get(each["name"]) for each in pod["spec"].get("resourceClaims") or ()
    )
    return [f"{pod['metadata']['namespace']}/{name}" for name in found if name]


def _version(item: Object) -> tuple[str, str]:
    return item["metadata"]["uid"], item["metadata"]["resourceVersion"]


def devices_of(claim: Object) -> set[tuple[str, str]]:
    """The devices that a claim has, by pool and name."""
    found = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return {(each["pool"], each["device"]) for each in found.get("results") or ()}


class _Watch(threading.Thread):
    """All objects of a kind as they change; `check` is called after each change."""

    def __init__(
        self,
        plane: ControlPlane,
        path: str,
        check: Callable[[dict[str, Object], Object], None],
        failed: Callable[[str], None],
    ) -> None:
        super().__init__(daemon=True)
        self._plane, self._path, self._failed = plane, path, failed
        self._look = check
        self.known: dict[str, Object] = {}
        self.events = 0
        self.done = threading.Event()

    def run(self) -> None:
        with self._plane.client() as kube:
            while not self.done.is_set():
                try:
                    self._follow(kube)
                except (ApiError, UnreachableError, orjson.JSONDecodeError):
                    self.done.wait(0.1)

    def _check(self, known: dict[str, Object], item: Object) -> None:
        try:
            self._look(known, item)
        except Exception as error:  # what is not looked at is not right because of that
            self._failed(f"the auditor does not understand {name_of(item)}: {error!r}")

    def _follow(self, kube: KubeClient) -> None:
        body = kube.request("GET", self._path).body
        self.known = {item["metadata"]["uid"]: item for item in body["items"]}
        for item in body["items"]:
            self._check(self.known, item)
        query = {"resourceVersion": body["metadata"]["resourceVersion"], "timeoutSeconds": "5"}
        for event in kube.watch(self._path, query):
            item = event["object"]
            if event["type"] == "ERROR":
                return
            self.events += 1
            if event["type"] == "DELETED":
                self.known.pop(item["metadata"]["uid"], None)
            else:
                self.known[item["metadata"]["uid"]] = item
                self._check(self.known, item)
            if self.done.is_set():
                return


class Auditor:
    """Watches while a `with` block runs; `findings` is what was wrong at any moment."""

    def __init__(self, plane: ControlPlane, limits: Mapping[str, int], guaranteed: Mapping[str, int]) -> None:
        """The GPUs that each namespace may have, and those of which it cannot be deprived."""
        self._limits, self._guaranteed = limits, guaranteed
        self.findings: dict[str, None] = {}
        self._kube = plane.client()
        self._partial: dict[str, float] = {}
        self.longest = 0.0
        """Seconds for which a part of a gang had its places, and the others had none."""
        self._pods = _Watch(plane, "/api/v1/pods", self._pod, self._found)
        self._claims = _Watch(plane, f"/apis/{API}/resourceclaims", self._claim, self._found)
        self._watches = (self._pods, self._claims)

    def __enter__(self) -> Auditor:
        for watch in self._watches:
            watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.done.set()
        for watch in self._watches:
            watch.join(15)  # its request ends within `timeoutSeconds`
        self._kube.close()

    @property
    def events(self) -> int:
        """Changes that were looked at."""
        return sum(watch.events for watch in self._watches)

    def behind(self) -> list[str]:
        """Which of what there is it has not seen: nothing, once nothing changes any more."""
        found: list[str] = []
        for watch, (version, kind) in ((self._pods, ("v1", "Pod")), (self._claims, (API, "ResourceClaim"))):
            there = {_version(item) for item in self._kube.list(version, kind)}
            seen = {_version(item) for item in list(watch.known.values())}
            if there != seen:
                found.append(f"the auditor has not seen {len(there ^ seen)} changes of {kind}s")
        return found

    def _found(self, text: str) -> None:
        self.findings[text] = None

    def _pod(self, known: dict[str, Object], pod: Object) -> None:
        self._gang(known.values(), pod)
        if not alive(pod):
            return
        node = pod["spec"]["nodeName"]
        here = [each for each in known.values() if alive(each) and each["spec"]["nodeName"] == node]
        self._gpus(node, here)
        if sum(amount(each, "cpu") for each in here) > CPUS:
            self._found(f"{node} has more CPUs in use than it has")
        self._quota(known.values(), pod["metadata"]["namespace"])
        self._has_devices(pod)

    def _gpus(self, node: str, here: Iterable[Object]) -> None:
        """Those that a device plugin hands out."""
        used, holders = Counter[str](), dict[str, list[str]]()
        total = 0.0
        for each in here:
            share, numbers = share_of(each), numbers_of(each)
            wanted = 1 if share else amount(each, "nvidia.com/gpu")
            total += share or wanted
            ours = each["spec"]["schedulerName"] == "avactl"
            if ours and not set(map(str, range(GPUS))).issuperset(numbers):
                self._found(f"{name_of(each)} on {node} has GPUs `{numbers}` that are not there")
            if ours and not len(numbers) == len(set(numbers)) == wanted:
                self._found(f"{name_of(each)} on {node} has GPUs `{numbers}`, and should have {wanted}")
            for gpu in numbers:
                used[gpu] += round(1000 * (share or 1))
                holders.setdefault(gpu, []).append(name_of(each))
        for gpu, milli in used.items():
            if milli > 1000:
                self._found(
                    f"GPU {gpu} of {node} is held {milli / 1000:g} times by {' and '.join(sorted(holders[gpu]))}"
                )
        if total > GPUS:
            self._found(f"{total:g} GPUs of {node} are in use")

    def _quota(self, pods: Iterable[Object], namespace: str) -> None:
        used, sure, shared = 0.0, 0.0, dict[str, int]()
        for pod in pods:
            if pod["metadata"]["namespace"] == namespace and alive(pod):
                of_claims = int(pod["metadata"]["labels"].get(GPUS_OF_CLAIMS, 0))
                claim = pod["spec"].get("resourceClaims", [{}])[0].get("resourceClaimName")
                if claim:
                    shared[claim] = of_claims
                    continue
                gpus = amount(pod, "nvidia.com/gpu") + of_claims + share_of(pod)
                used += gpus
                if pod["metadata"].get("annotations", {}).get("avactl.dev/preemptible") == "false":
                    sure += gpus
        used += sum(shared.values())
        for what, have, most in (
            ("GPUs", used, self._limits),
            ("GPUs that must not be taken from it", sure, self._guaranteed),
        ):
            if namespace in most and have > most[namespace]:
                self._found(f"{namespace} has {have:g} {what}, and may have {most[namespace]}")

    def _gang(self, pods: Iterable[Object], pod: Object) -> None:
        gang = (pod["metadata"].get("labels") or {}).get("avactl.dev/gang")
        if not gang:
            return
        place = pod["metadata"]["namespace"], gang
        members = [
            each
            for each in pods
            if (each["metadata"]["namespace"], (each["metadata"].get("labels") or {}).get("avactl.dev/gang")) == place
        ]
        size = int(pod["metadata"]["annotations"]["avactl.dev/gang-size"])
        there = [each for each in members if each["spec"].get("nodeName") and each["status"].get("phase") != "Failed"]
        holding = any(alive(each) and "deletionTimestamp" not in each["metadata"] for each in there)
        key, now = "/".join(place), time.monotonic()
        if holding and len(there) < size:
            self._partial.setdefault(key, now)
        elif key in self._partial:
            self.longest = max(self.longest, now - self._partial.pop(key))

    def _claim(self, known: dict[str, Object], claim: Object) -> None:
        used = Counter[tuple[str, str]]()
        holders: dict[tuple[str, str], set[str]] = {}
        for each in known.values():
            for pool, device in devices_of(each):
                gpu, half, _ = device.partition(HALF)
                used[pool, gpu] += 1 if half else 2
                used[pool, device] += 2 if half else 0
                for name in (gpu, device):
                    holders.setdefault((pool, name), set()).add(name_of(each))
        for place in [place for place, halves in used.items() if halves > 2 and name_of(claim) in holders[place]]:
            self._found(f"device {'/'.join(place)} is allocated to {' and '.join(sorted(holders[place]))}")
        users = {each["uid"] for each in (claim.get("status") or {}).get("reservedFor") or ()}
        for pod in list(self._pods.known.values()):
            if alive(pod) and pod["metadata"]["uid"] not in users and name_of(claim) in claims_of(pod):
                self._has_devices(pod)

    def _has_devices(self, pod: Object) -> None:
        """A pod that runs has what its claims ask for, on its node, as long as it does."""
        for name in claims_of(pod):
            claims = {name_of(each): each for each in list(self._claims.known.values())}
            if lacks(pod, claims.get(name)):
                # One watch may be ahead of the other.
                words = lacks(pod, patient(partial(self._kube.find, API, "ResourceClaim", *reversed(name.split("/")))))
                own = pod["metadata"]
                now = patient(partial(self._kube.find, "v1", "Pod", own["name"], own["namespace"]))
                if words and now is not None and now["metadata"]["uid"] == own["uid"] and alive(now):
                    self._found(words)


def lacks(pod: Object, claim: Object | None) -> str:
    """What is wrong with a claim of a pod that runs."""
    users = (claim or {}).get("status", {}).get("reservedFor") or ()
    if claim is None or not devices_of(claim) or pod["metadata"]["uid"] not in {user["uid"] for user in users}:
        return f"{name_of(pod)} runs, and its claim is not allocated to it"
    if {pool for pool, _ in devices_of(claim)} != {pod["spec"]["nodeName"]}:
        return f"{name_of(pod)} runs on {pod['spec']['nodeName']}, and has devices {sorted(devices_of(claim))}"
    return ""


def unsettled(kube: KubeClient, namespaces: Iterable[str], ended: bool = False) -> list[str]:
    """What must not be so in the end, when nothing changes any more; `ended`: nor a pod that ends by itself."""
    found: list[str] = []
    pods = [pod for namespace in namespaces for pod in kube.list("v1", "Pod", namespace)]
    claims = {name_of(claim): claim for namespace in namespaces for claim in kube.list(API, "ResourceClaim", namespace)}
    uids = {pod["metadata"]["uid"] for pod in pods}
    placed = {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName")}
    running, whole = Counter[str](), dict[str, int]()
    for pod in pods:
        status, metadata = pod.get("status", {}), pod["metadata"]
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        phase, node = status.get("phase"), pod["spec"].get("nodeName")
        if "deletionTimestamp" in metadata:
            found.append(f"{name_of(pod)} is still ending")
        elif not node and not (conditions.get("PodScheduled") or {}).get("message"):
            found.append(f"{name_of(pod)} waits and does not know why")
        elif node and phase not in _ENDED:
            if ended and ENDS_AFTER in metadata.get("annotations", {}):
                found.append(f"{name_of(pod)} has not ended yet")
            if "DisruptionTarget" in conditions and conditions["DisruptionTarget"]["status"] == "True":
                found.append(f"{name_of(pod)} runs and is marked: {conditions['DisruptionTarget'].get('message')}")
            found += filter(None, (lacks(pod, claims.get(claim)) for claim in claims_of(pod)))
        if not node and status.get("nominatedNodeName") and phase not in _ENDED:
            found.append(f"{name_of(pod)} is nominated for {status['nominatedNodeName']}: {conditions}")
        gang = metadata["labels"].get("avactl.dev/gang")
        if gang:
            key = f"{metadata['namespace']}/{gang}"
            whole[key] = int(metadata["annotations"]["avactl.dev/gang-size"])
            running[key] += bool(node) and status.get("phase") != "Failed"
            running[f"{key} now"] += alive(pod)
    for gang, size in whole.items():
        if running[f"{gang} now"] and running[gang] < size:
            found.append(f"{running[gang]} of {size} of gang {gang} run")
    for name, claim in claims.items():
        users = (claim.get("status") or {}).get("reservedFor") or ()
        if users and any(user["uid"] not in uids for user in users):
            found.append(f"claim {name} is reserved for a pod that was deleted")
        elif devices_of(claim) and not any(user["uid"] in placed for user in users):
            found.append(f"claim {name} has devices for nobody, or for pods that wait")
    return found


def waiting(kube: KubeClient, namespaces: Iterable[str]) -> dict[str, str]:
    """Pods, by uid, that have no place, and their names."""
    pods = [pod for namespace in namespaces for pod in kube.list("v1", "Pod", namespace)]
    return {pod["metadata"]["uid"]: name_of(pod) for pod in pods if not pod["spec"].get("nodeName")}


def patient(call: Callable[[], Any]) -> Any:
    """Call until the API server is there; None for what is gone, or there already."""
    pause = threading.Event()
    for _ in range(600):
        try:
            return call()
        except UnreachableError:
            pass
        except ApiError as error:
            if error.status in (404, 409, 422):
                return None
            if error.status not in (401, 403, 429) and error.status < 500:
                raise
        pause.wait(0.1)
    raise TimeoutError("the API server does not come back")
