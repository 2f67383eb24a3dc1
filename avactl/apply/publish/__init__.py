"""Publish rendered manifests on a branch: `avactl render --publish`."""

from avactl.apply.publish.publisher import PublishOptions, PublishOutcome, looks_elsewhere, publish_commit
from avactl.apply.publish.store import PublishError

__all__ = ["PublishError", "PublishOptions", "PublishOutcome", "looks_elsewhere", "publish_commit"]
