"""Check of the member for whom a spec runs pods."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.program.program import Item, Program


def member_problems(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Yield a warning for a member whom the team does not list. Membership by groups cannot be checked here."""
    member = item.resource.member
    if not member or not item.team:
        return
    team = program.team(item.team)
    members = team.spec.members
    listed = [*members.users, *members.admins]
    if listed and not members.groups and member not in listed:
        yield Diagnostic(
            "user-not-in-team",
            f"`{member}` is not a member of team {team.name} and cannot access {item}",
            item.span(*item.resource.MEMBER_PATH),
            severity="warning",
            hint=f"add the user to `members` of Team {team.name}",
            notes=(Note(team.span("spec", "members", key=True), "the members"),),
        )
