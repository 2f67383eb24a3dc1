"""The token that GitLab needs."""

from __future__ import annotations

ACCESS_HINT = (
    "create a project access token with the role Reporter and the scope `api`, and give it to the job as the masked "
    "variable GITLAB_TOKEN, not protected: pipelines of merge requests get no protected variables"
)
"""How to create the token."""
