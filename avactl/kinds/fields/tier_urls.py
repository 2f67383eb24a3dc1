"""Check that a cache tier serves an object-store URL; used by datasets and team buckets."""

from __future__ import annotations

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.dataset_access import tier_path
from avactl.kinds.program import Item, Program


def url_in_tier(
    item: Item, program: Program, tier_name: str, url: str, path: tuple[str | int, ...]
) -> list[Diagnostic]:
    """Return a problem if no under-store of the tier contains `url`, which is at `path` of `item`."""
    tier = program.find_tier(tier_name)
    if tier is None or tier_path(tier, url) is not None:
        return []
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
