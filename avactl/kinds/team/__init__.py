"""The Team kind."""

from avactl.kinds.team.check import check, check_all
from avactl.kinds.team.facts import facts
from avactl.kinds.team.lower import lower
from avactl.program.registry import Kind
from avactl.spec.platform.team import Bucket, DefaultWorkspace, Members, Team, TeamNamespace, TeamSpec

__all__ = ["KIND", "Bucket", "DefaultWorkspace", "Members", "Team", "TeamNamespace", "TeamSpec"]

KIND = Kind(model=Team, lower=lower, check=check, check_all=check_all, facts=facts)
