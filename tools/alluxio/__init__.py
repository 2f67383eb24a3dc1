"""A real Alluxio cluster on loopback, for tests and benchmarks.

`build_jars` fetches Alluxio's pinned jars with Maven, once, into a cache; `Alluxio` starts masters, workers and job
services with given properties, runs shell commands and scripts against them, and leaves no process behind.
"""

from tools.alluxio.build import build_jars
from tools.alluxio.cluster import Alluxio, CommandError

__all__ = ["Alluxio", "CommandError", "build_jars"]
