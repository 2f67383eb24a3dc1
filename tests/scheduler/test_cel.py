"""The CEL of device selectors: what it answers, and what it refuses."""

from __future__ import annotations

import pytest

from avactl.kinds.cluster.devices import device_selector
from avactl.scheduler.cel.compiler import CelDevice, CelError, compile_selector, quantity, version

V100 = CelDevice(
    "gpu.nvidia.com",
    {
        "gpu.nvidia.com": {
            "type": "gpu",
            "productName": "Tesla V100-SXM2-32GB",
            "index": 3,
            "ecc": True,
            "driverVersion": version("580.65.6"),
        },
        "resource.kubernetes.io": {"pcieRoot": "pci0000:17"},
    },
    {"gpu.nvidia.com": {"memory": quantity("32Gi")}},
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (device_selector("gpu.nvidia.com", "V100"), True),
        (device_selector("gpu.nvidia.com", "V100-32GB"), True),
        (device_selector("gpu.nvidia.com", "A100"), False),
        (device_selector("gpu.example.com", "V100"), False),
        ('device.driver == "gpu.nvidia.com"', True),
        ('device.attributes["gpu.nvidia.com"].index in [1, 2, 3]', True),
        ('device.attributes["gpu.nvidia.com"]["index"] > 3', False),
        ('device.attributes["gpu.nvidia.com"].ecc && !(device.driver != "gpu.nvidia.com")', True),
        ('device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("16Gi")) >= 0', True),
        ('device.capacity["gpu.nvidia.com"].memory.isLessThan(quantity("16Gi"))', False),
        ('device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("580.65.6-rc.1")) > 0', True),
        ('has(device.attributes["gpu.nvidia.com"].model)', False),
        ('has(device.attributes["x.example.com"].model)', False),
        ('device.attributes["gpu.nvidia.com"].?model.orValue("none") == "none"', True),
        ('device.attributes["gpu.nvidia.com"][?"type"].orValue("none") == "gpu"', True),
        ('device.attributes["x"].?y.hasValue() ? false : true', True),
        ('cel.bind(own, device.attributes["gpu.nvidia.com"], own.ecc && own.index == 3)', True),
        ('["V100", "A100"].exists(name, device.attributes["gpu.nvidia.com"].productName.contains(name))', True),
        ('["Tesla", "NVIDIA"].all(name, device.attributes["gpu.nvidia.com"].productName.startsWith(name))', False),
        ("[1, 2, 3].filter(each, each > 1).map(each, each * 2) == [4, 6] && size([1]) == 1", True),
        ("1 + 2 * 3 - 4 / 3 == 6 && -7 % 3 == -1 && 'a' + 'b' == 'ab'", True),
        ('quantity("1Gi").add(quantity("1Gi")).asInteger() == 2147483648', True),
        ('semver("1.2.3").minor() == 2 && !isSemver("1.2") && isQuantity("2Gi")', True),
        ('device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("v100-[^ ]*gb$")', True),
        ("!device.allowMultipleAllocations", True),
        ('"model" in device.attributes["gpu.nvidia.com"]', False),
        ('"model" in device.attributes["other.example.com"]', False),
        ('has(device.attributes["gpu.nvidia.com"].type)', True),
        ("device.attributes['resource.kubernetes.io'].pcieRoot.startsWith('pci0000:1')", True),
        # As cel-go has it: what is not used is not worked out, types are kept apart, and comments are none of it.
        ('cel.bind(none, device.attributes["gpu.nvidia.com"].missing, true)', True),
        (
            'device.attributes["gpu.nvidia.com"].?type.orValue(device.attributes["gpu.nvidia.com"].missing) == "gpu"',
            True,
        ),
        ('device.attributes["gpu.nvidia.com"].type.orValue("x") == "gpu" && device.?driver.hasValue()', True),
        ('device.attributes.exists(each, each == "resource.kubernetes.io") && device.attributes.size() == 2', True),
        ("1 in [true] || [1] == [true]", False),
        ("1 < 2 == true // both\n && !false", True),
        ('device.attributes["gpu.nvidia.com"].driverVersion != "580.65.6"', True),
        ('device.attributes["gpu.nvidia.com"].driverVersion in [semver("1.0.0"), semver("580.65.6+build")]', True),
        (
            'isSemver("01.2.3") || isSemver("1.2.3-01") || isSemver("1.2.3-a..b")',
            False,
        ),
        ('isSemver("99999999999999999999.0.0")', False),
        ('isSemver("1.2.3-0a.b-c+001") && !isSemver("1.2.3+") && !isQuantity("1 Gi") && isQuantity("Gi")', True),
        ('quantity("1Gi").isInteger() && !quantity("1.5Gi").isInteger() && !quantity("1.0").isInteger()', True),
        ("'É'.lowerAscii() == 'É' && '\\u00e9' == 'é' && R'\\d' == r'\\d'", True),
        # An error on one side is forgiven where the other decides.
        ('device.driver == "gpu.nvidia.com" || device.attributes["x"].missing == 1', True),
        ('device.attributes["x"].missing == 1 && device.driver == "no"', False),
    ],
)
def test_value(expression: str, expected: bool) -> None:
    assert compile_selector(expression)(V100) is expected


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["gpu.nvidia.com"].missing == 1',
        'device.attributes["gpu.nvidia.com"].index == 3 && device.attributes["x"].y',
        'device.attributes["gpu.nvidia.com"].index < "3"',
        "device.driver",
        "1 ? true : false",
        "1 / 0 == 1",
        'device.driver.matches("(a")',
        'device.attributes["x"].?y.value() == 1',
        'device.attributes["gpu.nvidia.com"].driverVersion == "580.65.6"',
        'quantity("1.5Gi").asInteger() == 1610612736',
    ],
)
def test_without_a_value(expression: str) -> None:
    with pytest.raises(CelError):
        compile_selector(expression)(V100)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "device.driver ==",
        "(true",
        "__import__('os')",
        "device.x()",
        "[1].sum()",
        "x == 1",
        "cel.bind(x, 1, y)",
        "(" * 500,
        "true true",
        "1.5 > 1",
        '"a b".split(" ").size() == 2',
    ],
)
def test_not_supported(expression: str) -> None:
    with pytest.raises(CelError):
        compile_selector(expression)


def test_work_is_bounded() -> None:
    numbers = "[" + ",".join(["1"] * 100) + "]"
    nested = "".join(f"{numbers}.all(x{level}, " for level in range(5)) + "true" + ")" * 5
    with pytest.raises(CelError, match="too many steps"):
        compile_selector(nested)(V100)
    # RE2 takes linear time.
    assert not compile_selector(f'"{"a" * 5000}".matches("(a+)+$b")')(V100)
