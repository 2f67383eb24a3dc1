"""Publish rendered manifests on a branch: `avactl render --publish`."""

from avactl.apply.publish.publisher import Options, Outcome, looks_elsewhere, publish_commit
from avactl.apply.publish.store import PublishError

__all__ = ["Options", "Outcome", "PublishError", "looks_elsewhere", "publish_commit"]
