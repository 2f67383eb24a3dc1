"""Training jobs on GPUs: claims, devices, NVLink domains, and pools that keep pods off."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kinds.on_base import objects
from tests.kinds.training import HEAD, PLATFORM, container, env, pod


def test_gpus_by_claim_and_by_device_plugin() -> None:
    workers = "  workers: {gpus: 4, gpu: %s, link: nvlink, linkPolicy: required, rdma: %s}\n"
    opted = workers.replace("}", ", tolerates: [example.com/gpu]}")
    claimed = objects(PLATFORM + HEAD + opted % ("H100", "false"), base=False)
    spec = pod(claimed)["spec"]
    assert spec["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "net-worker-gpus"}]
    request = claimed["ResourceClaimTemplate", "net-worker-gpus"]["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert (request["deviceClassName"], request["count"]) == ("gpu-h100", 4)
    assert container(claimed)["resources"]["claims"] == [{"name": "gpus"}]
    assert spec["nodeSelector"] == {"avactl.dev/gpu": "H100", "example.com/fabric": "ib"}
    assert spec["tolerations"] == [{"key": "example.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    notes = pod(claimed)["metadata"]["annotations"]
    assert (notes["avactl.dev/link"], notes["avactl.dev/link-policy"]) == ("nvlink", "required")

    workers = workers.replace("nvlink", "pcieSwitch")
    plugin = objects(PLATFORM + HEAD + workers % ("V100", "true"), base=False)
    limits = container(plugin)["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["rdma/hca"]) == ("4", "1")
    # Which of the machine's GPUs: the scheduler's Binding says it in an annotation.
    sources = {entry["name"]: entry.get("valueFrom") for entry in container(plugin)["env"]}
    assert sources["NVIDIA_VISIBLE_DEVICES"] == {
        "fieldRef": {"fieldPath": "metadata.annotations['avactl.dev/devices']"}
    }
    assert pod(plugin)["spec"]["schedulerName"] == "avactl"


GB200 = PLATFORM.replace("machineType: h100-sxm-8", "machineType: gb200-nvl-tray").replace(
    "taints: [{key: example.com/gpu}]", "taints: []"
)


def test_pods_that_fill_their_machines_share_an_nvlink_domain() -> None:
    text = GB200 + HEAD + "  strategy: allReduce\n  workers: {replicas: 4, gpus: 4, gpu: GB200, link: nvlink}\n"
    found = objects(text, base=False)
    domain = found["ComputeDomain", "net-worker"]
    assert domain["apiVersion"] == "resource.nvidia.com/v1beta1"
    channel = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    assert pod(found)["spec"]["resourceClaims"] == [
        {"name": "gpus", "resourceClaimTemplateName": "net-worker-gpus"},
        {"name": "nvlink", "resourceClaimTemplateName": channel},
    ]
    assert container(found)["resources"]["claims"] == [{"name": "gpus"}, {"name": "nvlink"}]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("link: nvlink", "link: any"),
        ("replicas: 4", "replicas: 1"),
        ("gpus: 4", "gpus: 2"),  # a machine has one channel, and holds two such pods
        ("allocation: dra", "allocation: devicePlugin"),
        ("gb200-nvl-tray", "h100-sxm-8"),
        ("  daemons: {scheduler: true}", "  daemons: {scheduler: true}\n  gpuDriver: gpu.example.com"),
    ],
)
def test_no_nvlink_domain_where_it_is_of_no_use(old: str, new: str) -> None:
    text = GB200 + HEAD + "  strategy: allReduce\n  workers: {replicas: 4, gpus: 4, gpu: GB200, link: nvlink}\n"
    assert old in text
    model = "H100" if new.startswith("h100") else "GB200"
    found = objects(text.replace(old, new).replace("gpu: GB200", f"gpu: {model}"), base=False)
    assert [kind for kind, _ in found if kind == "ComputeDomain"] == []


def test_only_a_job_that_opts_in_runs_on_a_tainted_pool() -> None:
    spot = PLATFORM.replace("name: v100}", "name: spot}").replace(
        "count: 4, rdma", "count: 4, taints: [{key: example.com/spot}, {key: nvidia.com/gpu}], rdma"
    )
    both = spot + PLATFORM[PLATFORM.index("apiVersion: avactl.dev/v1\nkind: NodePool\nmetadata: {name: v100}") :]
    both = both.removesuffix(PLATFORM[PLATFORM.index("apiVersion: avactl.dev/v1\nkind: Team") :])
    by_plugin = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    on_spot = {"key": "example.com/spot", "operator": "Exists", "effect": "NoSchedule"}

    def tolerations(text: str, more: str) -> list[Any]:
        found: list[Any] = pod(objects(text + HEAD + f"  workers: {{gpus: 1, gpu: V100{more}}}\n", base=False))[
            "spec"
        ].get("tolerations", [])
        return found

    assert tolerations(both, "") == []
    assert tolerations(both, ", tolerates: [example.com/spot]") == [on_spot, by_plugin]
    assert tolerations(spot, ", pool: spot") == [on_spot, by_plugin]


@pytest.mark.parametrize(
    ("resource", "more", "nics"),
    [
        ("rdma/hca", "", "=mlx5_0"),
        ("rdma/hca", "  env: {NCCL_IB_HCA: mlx5_7}\n", "mlx5_7"),
        # A virtual NIC of SR-IOV has another name in the pod.
        ("nvidia.com/sriov", "", None),
    ],
)
def test_nccl_uses_the_rdma_nics_of_the_machine_type(resource: str, more: str, nics: str | None) -> None:
    workers = "  strategy: allReduce\n  workers: {replicas: 2, gpus: 8, gpu: V100, rdma: true}\n"
    found = objects(PLATFORM.replace("rdma/hca", resource) + HEAD + workers + more, base=False)
    assert env(found).get("NCCL_IB_HCA") == nics
    plain = objects(PLATFORM + HEAD + workers.replace(", rdma: true", ""), base=False)
    assert "NCCL_IB_HCA" not in env(plain)
