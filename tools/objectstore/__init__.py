"""An S3 endpoint on loopback that can be slow and faulty, for tests and benchmarks.

`ObjectStore` runs moto's server in a process of its own, and in front of it a proxy that counts what passes and breaks
as much of it as `faults` says.
"""

from tools.objectstore.proxy import Faults, Traffic
from tools.objectstore.store import ACCESS_KEY, SECRET_KEY, ObjectStore

__all__ = ["ACCESS_KEY", "SECRET_KEY", "Faults", "ObjectStore", "Traffic"]
