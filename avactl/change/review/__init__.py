"""The pull request comment: one comment, found by its marker and edited in place."""
