"""An auditor of its own: reads the API and nothing else, and says what should never be."""

from __future__ import annotations

import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx
import orjson

from tools.controlplane import ApiError, ControlPlane, KubeClient

Object = dict[str, Any]
API = "resource.k8s.io/v1"
CPUS = 64
GPUS_OF_CLAIMS = "soak.example.com/gpus"
"""Label of pods: the GPUs that their own claims have."""
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


def devices_of(claim: Object) -> set[tuple[str, str]]:
    """The devices that a claim has, by pool and name."""
    found = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return {(each["pool"], each["device"]) for each in found.get("results") or ()}


class _Watch(threading.Thread):
    """All objects of a kind as they change; `check` is called after each change."""

    def __init__(self, plane: ControlPlane, path: str, check: Callable[[dict[str, Object], Object], None]) -> None:
        super().__init__(daemon=True)
        self._plane, self._path, self._check = plane, path, check
        self.known: dict[str, Object] = {}
        self.events = 0
        self.done = threading.Event()

    def run(self) -> None:
        headers = {"Authorization": f"Bearer {self._plane.token()}"}
        context = ssl.create_default_context(cafile=str(self._plane.ca_file))
        while not self.done.is_set():
            try:
                with httpx.Client(
                    base_url=self._plane.url, headers=headers, verify=context, trust_env=False, timeout=30
                ) as client:
                    self._follow(client)
            except (httpx.HTTPError, ValueError, KeyError):
                self.done.wait(0.1)

    def _follow(self, client: httpx.Client) -> None:
        body = client.get(self._path).raise_for_status().json()
        self.known = {item["metadata"]["uid"]: item for item in body["items"]}
        for item in body["items"]:
            self._check(self.known, item)
        query = {"watch": "1", "resourceVersion": body["metadata"]["resourceVersion"], "timeoutSeconds": "20"}
        with client.stream("GET", self._path, params=query) as stream:
            for line in stream.iter_lines():
                event = orjson.loads(line)
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

    def __init__(self, plane: ControlPlane, limits: Mapping[str, int]) -> None:
        """`limits` are the GPUs that each namespace may have."""
        self._limits = limits
        self.findings: dict[str, None] = {}
        pods = _Watch(plane, "/api/v1/pods", self._pod)
        claims = _Watch(plane, f"/apis/{API}/resourceclaims", self._claim)
        self._watches = (pods, claims)

    def __enter__(self) -> Auditor:
        for watch in self._watches:
            watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.done.set()

    @property
    def events(self) -> int:
        """Changes that were looked at."""
        return sum(watch.events for watch in self._watches)

    def _found(self, text: str) -> None:
        self.findings[text] = None

    def _pod(self, known: dict[str, Object], pod: Object) -> None:
        if not alive(pod):
            return
        node, holders = pod["spec"]["nodeName"], dict[str, str]()
        here = [each for each in known.values() if alive(each) and each["spec"]["nodeName"] == node]
        for each in here:
            text = each["metadata"].get("annotations", {}).get("avactl.dev/devices", "")
            devices = [gpu for gpu in text.split(",") if gpu]
            if not each["metadata"]["labels"].get(GPUS_OF_CLAIMS) and len(devices) != amount(each, "nvidia.com/gpu"):
                self._found(f"{name_of(each)} on {node} has GPUs `{text}`")
            if each["metadata"]["labels"].get(GPUS_OF_CLAIMS):
                continue
            for gpu in devices:
                other = holders.setdefault(gpu, name_of(each))
                if other != name_of(each):
                    self._found(f"GPU {gpu} of {node} is held by {' and '.join(sorted((other, name_of(each))))}")
        if sum(amount(each, "cpu") for each in here) > CPUS:
            self._found(f"{node} has more CPUs in use than it has")
        self._quota(known.values(), pod["metadata"]["namespace"])

    def _quota(self, pods: Iterable[Object], namespace: str) -> None:
        used, shared = 0, dict[str, int]()
        for pod in pods:
            if pod["metadata"]["namespace"] == namespace and alive(pod):
                of_claims = int(pod["metadata"]["labels"].get(GPUS_OF_CLAIMS, 0))
                claim = pod["spec"].get("resourceClaims", [{}])[0].get("resourceClaimName")
                if claim:
                    shared[claim] = of_claims
                else:
                    used += amount(pod, "nvidia.com/gpu") + of_claims
        used += sum(shared.values())
        if namespace in self._limits and used > self._limits[namespace]:
            self._found(f"{namespace} has {used} GPUs, and may have {self._limits[namespace]}")

    def _claim(self, known: dict[str, Object], claim: Object) -> None:
        mine = devices_of(claim)
        for other in known.values():
            both = mine & devices_of(other) if other["metadata"]["uid"] != claim["metadata"]["uid"] else None
            if both:
                who = " and ".join(sorted((name_of(claim), name_of(other))))
                self._found(f"devices {sorted(both)} are allocated to {who}")


def unsettled(kube: KubeClient, namespaces: Iterable[str]) -> list[str]:
    """What must not be so in the end, when nothing changes any more."""
    found: list[str] = []
    pods = [pod for namespace in namespaces for pod in kube.list("v1", "Pod", namespace)]
    claims = {name_of(claim): claim for namespace in namespaces for claim in kube.list(API, "ResourceClaim", namespace)}
    uids = {pod["metadata"]["uid"] for pod in pods}
    running, whole = Counter[str](), dict[str, int]()
    for pod in pods:
        status, metadata = pod.get("status", {}), pod["metadata"]
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        ended, node = status.get("phase") in _ENDED, pod["spec"].get("nodeName")
        if "deletionTimestamp" in metadata:
            found.append(f"{name_of(pod)} is still ending")
        elif not node and not (conditions.get("PodScheduled") or {}).get("message"):
            found.append(f"{name_of(pod)} waits and does not know why")
        elif node and not ended:
            if "DisruptionTarget" in conditions and conditions["DisruptionTarget"]["status"] == "True":
                found.append(f"{name_of(pod)} runs and is marked: {conditions['DisruptionTarget'].get('message')}")
            found += _without_devices(pod, claims)
        if not node and status.get("nominatedNodeName") and not ended:
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
            found.append(f"claim {name} is reserved for a pod that is gone")
        elif devices_of(claim) and not users:
            found.append(f"claim {name} has devices for nobody")
    return found


def _without_devices(pod: Object, claims: Mapping[str, Object]) -> list[str]:
    made = {each["name"]: each.get("resourceClaimName") for each in pod["status"].get("resourceClaimStatuses") or ()}
    for each in pod["spec"].get("resourceClaims") or ():
        claim = claims.get(f"{pod['metadata']['namespace']}/{each.get('resourceClaimName') or made[each['name']]}")
        users = (claim or {}).get("status", {}).get("reservedFor") or ()
        if claim is None or not devices_of(claim) or pod["metadata"]["uid"] not in {user["uid"] for user in users}:
            return [f"{name_of(pod)} runs, and its claim is not allocated to it"]
    return []


def patient(call: Callable[[], Any]) -> Any:
    """Call until the API server is there; None for what is gone, or there already."""
    pause = threading.Event()
    for _ in range(600):
        try:
            return call()
        except httpx.TransportError:
            pass
        except ApiError as error:
            if error.status in (404, 409, 422):
                return None
            if error.status not in (401, 403, 429) and error.status < 500:
                raise
        pause.wait(0.1)
    raise TimeoutError("the API server does not come back")
