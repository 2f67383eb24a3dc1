"""OCI images built without a registry, from Debian packages, locked wheels and this source tree.

`avactl` has the command line and all daemons; the others are for tests on a real node. They are cached, and built anew
when their inputs change.
"""

from tools.image.images import (
    avactl,
    busybox,
    kubectl,
    model_server,
    pause,
    program,
    programs,
    python,
    shell,
    training,
)
from tools.image.oci import Image

__all__ = [
    "Image",
    "avactl",
    "busybox",
    "kubectl",
    "model_server",
    "pause",
    "program",
    "programs",
    "python",
    "shell",
    "training",
]
