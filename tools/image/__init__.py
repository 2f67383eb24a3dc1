"""OCI images built without a registry, from Debian packages, locked wheels and this source tree.

`avactl` has the command line and all daemons; `busybox`, `python` and `pause` are for tests on a real node. They are
cached, and built anew when their inputs change.
"""

from tools.image.images import avactl, busybox, pause, python
from tools.image.oci import Image

__all__ = ["Image", "avactl", "busybox", "pause", "python"]
