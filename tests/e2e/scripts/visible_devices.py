"""An OCI runtime that adds device files as NVIDIA's container runtime does, and leaves the rest to runc.

A container's devices are those of its annotations of CDI, else of its mounts below `MOUNTS`, else of its variable.
Source: VisibleDevices in internal/config/image/cuda_image.go of NVIDIA/nvidia-container-toolkit.
"""

import json
import os
import sys
from pathlib import Path

MOUNTS = "/var/run/nvidia-container-devices/"
VARIABLE = "NVIDIA_VISIBLE_DEVICES="


def main() -> None:
    """Change the bundle of a container that is to be created, and become runc."""
    arguments = sys.argv[1:]
    if "create" in arguments:
        path = Path(arguments[arguments.index("--bundle") + 1], "config.json")
        spec = json.loads(path.read_text())
        for device in requested(spec):
            # The last character of `0`, `GPU-0` and `nvidia.com/gpu=GPU-0` is the number of the GPU.
            target = f"/dev/fakegpu{device[-1]}"
            spec["mounts"].append({"destination": target, "type": "bind", "source": "/dev/null", "options": ["bind"]})
        path.write_text(json.dumps(spec))
    os.execvp("runc", ["runc", *arguments])


def requested(spec: dict) -> list[str]:
    """Return the devices of a container: by CDI, by mounts, or by the variable."""
    notes = [value for key, value in (spec.get("annotations") or {}).items() if key.startswith("cdi.k8s.io/")]
    if notes:
        return [device for value in notes for device in value.split(",")]
    mounts = [mount["destination"] for mount in spec["mounts"] if mount["destination"].startswith(MOUNTS)]
    if mounts:
        return [path.removeprefix(MOUNTS) for path in mounts]
    values = [each.removeprefix(VARIABLE) for each in spec["process"].get("env") or () if each.startswith(VARIABLE)]
    return [device for device in (values[-1] if values else "").split(",") if device not in ("", "void")]


main()
