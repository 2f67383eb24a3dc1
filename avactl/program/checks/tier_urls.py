"""Check that a cache tier serves an object-store URL; used by datasets and team buckets."""

from __future__ import annotations

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.program.dataset_access import under_store
from avactl.program.program import Item, Program


def url_in_tier(
    item: Item, program: Program, tier_name: str, url: str, path: tuple[str | int, ...]
) -> list[Diagnostic]:
    """Return a problem if no under-store of the tier that the team may use contains `url`, at `path` of `item`."""
    tier = program.find_tier(tier_name)
    if tier is None or under_store(tier, url) is not None:
        return _not_for_team(item, program, tier_name, url, path)
    stores = one_of(store.url for store in tier.spec.under_stores)
    return [
        Diagnostic(
            "url-not-in-tier",
            f"`{url}` is not in any under-store of cache tier `{tier_name}`",
            item.span(*path),
            label=f"the tier has {stores}",
            hint=f"add the store to `underStores` of the tier, or use a URL under {stores}",
            notes=(Note(tier.span("spec", "underStores", key=True), "the tier's under-stores"),),
        )
    ]


def _not_for_team(item: Item, program: Program, tier: str, url: str, path: tuple[str | int, ...]) -> list[Diagnostic]:
    """Return a problem if the under-store of `url`, which is at `path` of `item`, is for other teams."""
    found = program.find_tier(tier)
    store = under_store(found, url) if found is not None else None
    team = item.resource.owner
    if found is None or store is None or store.teams is None or team is None or team in store.teams:
        return []
    index = found.spec.under_stores.index(store)
    return [
        Diagnostic(
            "not-shared",
            f"under-store `{store.mount}` of cache tier `{tier}` is not for team {team}",
            item.span(*path),
            hint=f"it is for team {one_of(store.teams)}; add the team to `teams` of the under-store"
            if store.teams
            else "it is for platform datasets only; add the team to `teams` of the under-store",
            notes=(Note(found.span("spec", "underStores", index, "teams"), "its teams"),),
        )
    ]
