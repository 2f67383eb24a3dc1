"""Provenance of a training from the status of its pods: digests of images, and commits of code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from avactl.contracts.delivery import COMMIT_PATTERN, IMAGE_DIGEST_PATTERN, MAX_ORIGINS
from avactl.contracts.pod_annotations import DEFAULT_CONTAINER
from avactl.program.lowering.pods import CODE

Body = dict[str, Any]
_IMAGE_ID = re.compile(rf"(?:[a-z]{{1,16}}(?:-[a-z]{{1,16}})?://)?({IMAGE_DIGEST_PATTERN})").fullmatch
_IS_COMMIT = re.compile(COMMIT_PATTERN).fullmatch


def provenance_of(pods: Iterable[Body]) -> dict[str, list[str]]:
    """Return the known `images` and `commits` of pods, each sorted.

    An image is that of the training program, as the runtime names it: `REPOSITORY@DIGEST`, or the digest alone where it
    has no repository. Pods differ if a tag or branch moved between their starts.
    """
    images: set[str] = set()
    commits: set[str] = set()
    for pod in pods:
        status = pod.get("status") or {}
        main = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER.name)
        # Programs that follow others, such as parameter servers, are sidecars.
        for each in [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]:
            name, ended = each.get("name"), (each.get("state") or {}).get("terminated") or {}
            image = _IMAGE_ID(str(each.get("imageID"))[:600]) if name and name == main else None
            if image is not None:
                images.add(image[1])
            said = str(ended.get("message"))[:100].strip()
            if name == CODE and ended.get("exitCode") == 0 and _IS_COMMIT(said):
                commits.add(said)
    each_kind = {"images": sorted(images)[:MAX_ORIGINS], "commits": sorted(commits)[:MAX_ORIGINS]}
    return {key: values for key, values in each_kind.items() if values}
