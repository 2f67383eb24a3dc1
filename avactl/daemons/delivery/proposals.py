"""Pull requests of the delivery daemon."""

from __future__ import annotations

import time
from pathlib import Path

from avactl.forges.forge import Forge
from avactl.forges.proposals import Proposal, Proposals
from avactl.forges.rest import ForgeError


class TokenFileProposals:
    """Pull requests with a token that is read anew for each call: a changed Secret needs no restart."""

    def __init__(self, forge: Forge, api: str, project: str, credentials: Path) -> None:
        """The token is the content of `credentials`/password."""
        self._forge, self._api, self._project, self._file = forge, api, project, credentials / "password"

    def state(self, branch: str) -> str:
        """As `PipelineProposals.state`."""
        return self._connect().state(branch)

    def find(self, branch: str) -> Proposal | None:
        """As `PromotionProposals.find`."""
        return self._connect().find(branch)

    def withdraw(self, branch: str, reason: str) -> None:
        """As `PromotionProposals.withdraw`."""
        self._connect().withdraw(branch, reason)

    def open(self, branch: str, base: str, title: str, text: str) -> str:
        """As `PipelineProposals.open`."""
        return self._connect().open(branch, base, title, text)

    def _connect(self) -> Proposals:
        try:
            token = self._file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ForgeError(f"{self._file}: {error}", "the Secret needs the key `password`, a token") from None
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ForgeError(f"{self._file} contains characters that are invalid in a token", "copy it again")
        return self._forge.connect_proposals(self._api, self._project, token, time.sleep)
