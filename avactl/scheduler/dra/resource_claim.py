"""ResourceClaims: requests, parsed once for all equal claims, and allocations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import orjson

from avactl.contracts.names import CLAIM_FINALIZER, EXTENDED_CLAIM
from avactl.scheduler.cel import compiler as cel
from avactl.scheduler.dra.resource_slices import AllocationResult
from avactl.scheduler.objects.node_rules import RuleError, UnsupportedError

MAX_DEVICES = 32
"""Maximum devices of one claim. Source: resource.k8s.io/v1, AllocationResultsMaxSize."""
ALL = -1


class LiveDeviceClass(NamedTuple):
    """One DeviceClass."""

    selectors: tuple[str, ...]
    config: tuple[dict[str, Any], ...]
    resource: str
    """Extended resource that maps to it; empty if there is none."""
    created: str = ""

    @classmethod
    def parse(cls, item: Mapping[str, Any]) -> LiveDeviceClass:
        """Parse the Kubernetes object."""
        spec = item.get("spec") or {}
        expressions = tuple(each["cel"]["expression"] for each in spec.get("selectors") or () if "cel" in each)
        created = item["metadata"].get("creationTimestamp") or ""
        return cls(expressions, tuple(spec.get("config") or ()), spec.get("extendedResourceName") or "", created)


class DeviceRequest(NamedTuple):
    """One request of a claim, or one of its alternatives: a number of devices that match all selectors."""

    name: str
    """`request`, or `request/alternative`."""
    request: str
    selectors: tuple[str, ...]
    """CEL expressions."""
    number: int
    """`ALL` for every device."""
    device_class: str
    admin: bool
    """True for adminAccess: its devices may be in use, and it does not reserve them."""
    tolerations: tuple[dict[str, Any], ...]
    capacity: Mapping[str, str]
    """Capacity required of shared devices."""


class DeviceConstraint(NamedTuple):
    """Constraint between the devices of requests."""

    distinct: bool
    """True if the values must differ, False if they must be equal."""
    attribute: str
    requests: frozenset[str]
    """Requests it applies to; empty for all."""

    def covers(self, wanted: DeviceRequest) -> bool:
        """Return True if the constraint covers a request's devices."""
        return not self.requests or wanted.request in self.requests or wanted.name in self.requests


class ClaimSpec:
    """`spec.devices` of claims: equal specs share one object."""

    __slots__ = ("__weakref__", "config", "constraints", "requests", "text")

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.requests: tuple[dict[str, Any], ...] = tuple(given.get("requests") or ())
        self.constraints: tuple[dict[str, Any], ...] = tuple(given.get("constraints") or ())
        self.config: tuple[dict[str, Any], ...] = tuple(given.get("config") or ())
        self.text = orjson.dumps([self.requests, self.constraints]).decode()
        """Equal where the same devices do."""


_specs: WeakValueDictionary[bytes, ClaimSpec] = WeakValueDictionary()


def claim_spec(given: Mapping[str, Any]) -> ClaimSpec:
    """Return the shared object of equal `spec.devices`."""
    key = orjson.dumps(given)
    spec = _specs.get(key)
    if spec is None:
        spec = _specs[key] = ClaimSpec(given)
    return spec


class ResourceClaim:
    """One ResourceClaim."""

    __slots__ = (
        "allocation",
        "deleting",
        "extended_for",
        "finalized",
        "key",
        "name",
        "namespace",
        "ready",
        "reserved",
        "results",
        "spec",
        "template",
        "uid",
        "version",
    )

    def __init__(self, item: Mapping[str, Any]) -> None:
        metadata, status = item["metadata"], item.get("status") or {}
        self.namespace: str = metadata["namespace"]
        self.name: str = metadata["name"]
        self.key = f"{self.namespace}/{self.name}"
        self.uid: str = metadata["uid"]
        self.version: str = metadata["resourceVersion"]
        self.finalized = CLAIM_FINALIZER in (metadata.get("finalizers") or ())
        self.deleting = "deletionTimestamp" in metadata
        self.template = bool(metadata.get("ownerReferences"))
        """True if it was created from a template, for one pod."""
        self.extended_for = _owner_of_extended(metadata)
        """UID of the pod for whose extended resources a scheduler created it; empty: it is another claim."""
        self.spec = claim_spec(item["spec"].get("devices") or {})
        self.allocation: dict[str, Any] | None = status.get("allocation")
        results = ((self.allocation or {}).get("devices") or {}).get("results") or ()
        self.results = tuple(AllocationResult.parse(each) for each in results)
        self.reserved: list[dict[str, Any]] = status.get("reservedFor") or []
        self.ready = not any(each.get("bindingConditions") for each in results) or _is_ready(results, status)
        """True if its devices are ready; None if their driver reports that they never will be."""

    @property
    def exists(self) -> bool:
        """False for a claim that the scheduler has yet to create."""
        return bool(self.version)

    @property
    def allocated(self) -> bool:
        """True if the claim is allocated."""
        return self.allocation is not None


def older(one: ResourceClaim, other: ResourceClaim) -> bool:
    """Return True if one state of a claim is older than another: resourceVersions are comparable (KEP-5504)."""
    versions = (one.version, other.version)
    return all(version.isdigit() for version in versions) and int(one.version) < int(other.version)


def _owner_of_extended(metadata: Mapping[str, Any]) -> str:
    if (metadata.get("annotations") or {}).get(EXTENDED_CLAIM) != "true":
        return ""
    owners = (each for each in metadata.get("ownerReferences") or () if each.get("controller"))
    return next((each["uid"] for each in owners if each["kind"] == "Pod"), "")


def _is_ready(results: Sequence[Mapping[str, Any]], status: Mapping[str, Any]) -> bool | None:
    """Equivalent to kube-scheduler's isClaimReadyForBinding (KEP-5007)."""
    said = {
        (each["driver"], each["pool"], each["device"]): {
            condition["type"] for condition in each.get("conditions") or () if condition["status"] == "True"
        }
        for each in status.get("devices") or ()
    }
    ready = True
    for each in results:
        true = said.get((each["driver"], each["pool"], each["device"]), set())
        if true.intersection(each.get("bindingFailureConditions") or ()):
            return None
        ready = ready and true.issuperset(each.get("bindingConditions") or ())
    return ready


class ParsedClaim(NamedTuple):
    """Requests of a claim, resolved against the known DeviceClasses."""

    requests: tuple[tuple[DeviceRequest, ...], ...]
    """Alternatives of each request, best first."""
    constraints: tuple[DeviceConstraint, ...]

    @property
    def plain(self) -> bool:
        """True if it requests a number of devices without constraints between them."""
        return not self.constraints and all(
            len(each) == 1 and each[0].number > 0 and not each[0].admin and not each[0].capacity
            for each in self.requests
        )


def parse(spec: ClaimSpec, classes: Mapping[str, LiveDeviceClass]) -> ParsedClaim:
    """Parse a claim. Raises RuleError for missing DeviceClasses and unsupported fields."""
    requests: list[tuple[DeviceRequest, ...]] = []
    for request in spec.requests:
        name = request["name"]
        if request.get("exactly") is not None:
            requests.append((_parse_request(name, name, request["exactly"], classes),))
        elif request.get("firstAvailable"):
            requests.append(
                tuple(
                    _parse_request(f"{name}/{each['name']}", name, each, classes) for each in request["firstAvailable"]
                )
            )
        else:
            raise UnsupportedError(f"request {name} of its ResourceClaim has an unsupported type")
    least = sum(min(max(each.number, 0) for each in request) for request in requests)
    if least > MAX_DEVICES:
        raise UnsupportedError(
            f"its ResourceClaim requests {least} devices; the limit is {MAX_DEVICES}: use several claims"
        )
    constraints = []
    for given in spec.constraints:
        attribute = given.get("matchAttribute") or given.get("distinctAttribute")
        if not attribute:
            raise UnsupportedError("its ResourceClaim has a constraint of an unsupported type")
        names = frozenset(given.get("requests") or ())
        constraints.append(DeviceConstraint("distinctAttribute" in given, attribute, names))
    return ParsedClaim(tuple(requests), tuple(constraints))


def _parse_request(
    name: str, request: str, given: Mapping[str, Any], classes: Mapping[str, LiveDeviceClass]
) -> DeviceRequest:
    mode = given.get("allocationMode") or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise UnsupportedError(f"its ResourceClaim has allocationMode {mode}, which is not supported")
    device_class = given["deviceClassName"]
    if device_class not in classes:
        raise RuleError(f"its ResourceClaim requests DeviceClass {device_class}, which does not exist")
    selectors = list(classes[device_class].selectors)
    for each in given.get("selectors") or ():
        if "cel" not in each:
            raise UnsupportedError("its ResourceClaim has a selector of an unsupported type")
        selectors.append(each["cel"]["expression"])
    for expression in selectors:
        try:
            cel.compile_selector(expression)
        except cel.CelError as error:
            raise RuleError(f"selector of DeviceClass {device_class} or of the claim: {error}") from None
    return DeviceRequest(
        name=name,
        request=request,
        selectors=tuple(selectors),
        number=ALL if mode == "All" else given.get("count") or 1,
        device_class=device_class,
        admin=bool(given.get("adminAccess")),
        tolerations=tuple(given.get("tolerations") or ()),
        capacity=(given.get("capacity") or {}).get("requests") or {},
    )
