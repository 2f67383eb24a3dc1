"""Domains of labels and annotations that others read: one table for what specs may set and for admission.

Components with more rights than the author of a spec, or than a member of a team, act on these keys.
"""

from __future__ import annotations

from typing import NamedTuple

from avactl.contracts.names import GROUP


class KeyDomain(NamedTuple):
    """A domain of keys, with its subdomains. Specs never have its keys."""

    name: str
    owner: str
    """Reader of the keys; diagnostics name it."""
    on_pods: bool = False
    """True if admission also refuses annotations of this domain on pods of members. Domains without it have
    annotations that members need or that are harmless on pods."""


_NETWORK, _CLOUD = "network plugins", "the cloud provider"
KEY_DOMAINS = (
    KeyDomain(GROUP, "avactl"),
    # Networks: other interfaces, addresses, subnets and security groups than those that NetworkPolicies are about.
    KeyDomain("cni.cncf.io", _NETWORK, on_pods=True),
    KeyDomain("multus-cni.io", _NETWORK, on_pods=True),
    KeyDomain("projectcalico.org", _NETWORK, on_pods=True),
    KeyDomain("cilium.io", _NETWORK, on_pods=True),
    KeyDomain("io.cilium", _NETWORK, on_pods=True),
    KeyDomain("ovn.org", _NETWORK, on_pods=True),
    KeyDomain("ovn.kubernetes.io", _NETWORK, on_pods=True),
    KeyDomain("antrea.io", _NETWORK, on_pods=True),
    KeyDomain("danm.k8s.io", _NETWORK, on_pods=True),
    KeyDomain("spidernet.io", _NETWORK, on_pods=True),
    KeyDomain("opflex.cisco.com", _NETWORK, on_pods=True),
    KeyDomain("networking.gke.io", _CLOUD, on_pods=True),
    KeyDomain("vpc.amazonaws.com", _CLOUD, on_pods=True),
    KeyDomain("k8s.aliyun.com", _CLOUD, on_pods=True),
    # Agents of nodes give a pod any cloud role that it names.
    KeyDomain("iam.amazonaws.com", _CLOUD, on_pods=True),
    KeyDomain("kueue.x-k8s.io", "Kueue"),
    KeyDomain("kubernetes.io", "Kubernetes"),
    KeyDomain("k8s.io", "Kubernetes"),
    KeyDomain("x-k8s.io", "Kubernetes"),
    KeyDomain("argoproj.io", "Argo CD"),
    KeyDomain("fluxcd.io", "Flux"),
    KeyDomain("helm.sh", "Helm"),
    KeyDomain("pulumi.com", "Pulumi"),
)
"""The first match counts."""
ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"
"""Label of namespaces whose ResourceClaims may have access to devices in use (KEP-5018). Kubernetes checks nothing
else, so whoever may label a namespace decides."""


def key_owner(key: str) -> str:
    """Return the owner of a label or annotation that specs cannot set; "" if they can."""
    domain = f".{key.rpartition('/')[0]}"
    return next((each.owner for each in KEY_DOMAINS if domain.endswith(f".{each.name}")), "")


def refused_on_pods() -> tuple[str, ...]:
    """Domains whose annotations admission refuses on pods of members."""
    return tuple(each.name for each in KEY_DOMAINS if each.on_pods)


def domain_pattern(domains: tuple[str, ...]) -> str:
    """Regular expression, for Python, JavaScript and RE2, of the keys of these domains and their subdomains."""
    names = "|".join(name.replace(".", "[.]") for name in domains)
    return f"([^/]*[.])?({names})/"
