"""Renames between two revisions. The matching is shared with the Pulumi edge, so it stands below both."""

from avactl.compiler.rename import Candidate, content, match_renames

__all__ = ["Candidate", "content", "match_renames"]
