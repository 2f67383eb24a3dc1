"""What the driver says of its GPUs, as `nvidia-smi -q -x` prints it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avactl.contracts.gpu_faults import GpuFault
from avactl.hardware.gpu_health import HealthOutputError, read_health
from tests.hardware.smi_logs import health

NONE = "<gpu_recovery_action>None</gpu_recovery_action>"
REMAPPED = "<remapped_rows><remapped_row_pending>{}</remapped_row_pending>{}</remapped_rows>"
FAILED = "<remapped_row_failure>Yes</remapped_row_failure>"
ECC = "<ecc_errors><volatile><dram_uncorrectable>{}</dram_uncorrectable></volatile></ecc_errors>"
FABRIC = "<fabric><state>{}</state><status>{}</status></fabric>"


@pytest.mark.parametrize(
    ("elements", "evict", "text"),
    [
        ("<gpu_recovery_action>Reset</gpu_recovery_action>", True, "needs a reset"),
        ("<gpu_recovery_action>Reboot</gpu_recovery_action>", True, "needs a reboot of the machine"),
        ("<gpu_recovery_action>Drain P2P</gpu_recovery_action>", True, "needs all peer-to-peer traffic to stop"),
        ("<gpu_recovery_action>Drain and Reset</gpu_recovery_action>", False, "is to be reset when its programs"),
        ("<gpu_recovery_action>Polish</gpu_recovery_action>", False, "needs: Polish"),
        (NONE + REMAPPED.format("No", FAILED), False, "memory with errors cannot be remapped"),
        (
            "<retired_pages><pending_retirement>Yes</pending_retirement></retired_pages>",
            False,
            "is to be reset, memory",
        ),
        (ECC.format(2), False, "2 uncorrectable memory errors since the driver was loaded"),
        (NONE + FABRIC.format("Completed", "Insufficient Resources"), False, "not in the NVLink fabric: Insufficient"),
    ],
)
def test_faults_of_a_gpu(elements: str, evict: bool, text: str) -> None:
    found = read_health(health({5: elements}))
    (fault,) = found.faults
    assert (found.gpus, fault.gpu, fault.evict) == (8, 5, evict)
    assert fault.text.startswith(text)


@pytest.mark.parametrize(
    "elements",
    [
        NONE,
        "",
        "<gpu_recovery_action>N/A</gpu_recovery_action>",
        # Programs go on, and new ones may start: docs.nvidia.com, GPU Memory Error Management.
        NONE + REMAPPED.format("Yes", "<remapped_row_failure>No</remapped_row_failure>"),
        # The driver has dealt with them.
        NONE + ECC.format(2),
        ECC.format("N/A"),
        NONE + FABRIC.format("Completed", "Success"),
        NONE + FABRIC.format("In Progress", "N/A"),
        NONE + FABRIC.format("N/A", "N/A"),
        NONE + "<processes><process_info><process_name>./GPU is lost</process_name></process_info></processes>",
    ],
)
def test_what_is_no_fault(elements: str) -> None:
    assert read_health(health({5: elements})) == (8, [])


LOST = (
    "Unable to determine the device handle for GPU3: 0000:17:00.0: GPU is lost.  Reboot the system to recover this GPU"
)


@pytest.mark.parametrize("output", [f"{LOST}\n", f"{health(gpus=7)}{LOST}\n", f"{health()}\n{LOST}\n"])
def test_a_gpu_that_has_fallen_off_the_bus(output: str) -> None:
    """The others may have other indexes, so it is a fault of the machine."""
    assert read_health(output).faults[0] == GpuFault(None, True, LOST)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", "no output"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "NVIDIA-SMI has failed"),
        (health()[:400], "<\\?xml version"),
        (health({1: "<fan>"}), "not XML: mismatched tag"),
        (health().replace('nvsmi_device_v12.dtd"', 'x" [<!ENTITY a "b">]'), "it declares XML entities"),
    ],
)
def test_output_that_says_nothing(output: str, said: str) -> None:
    with pytest.raises(HealthOutputError, match=said):
        read_health(output)


@given(st.text(max_size=300))
def test_any_output(noise: str) -> None:
    with suppress(HealthOutputError):
        assert len(read_health(f"{noise}{health({2: noise})}{noise}").faults) <= 17
