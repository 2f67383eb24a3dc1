"""JuiceFS Community Edition for tests: a pinned binary, and a volume on loopback."""

from tools.juicefs.build import build_binary, mount_options

__all__ = ["build_binary", "mount_options"]
