"""Remedies that several modules name."""

TOKEN_HINT = "`env: {GITHUB_TOKEN: ${{ github.token }}}` passes the job's own token"  # noqa: S105
"""How a job passes its token."""
