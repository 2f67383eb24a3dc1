"""What a pull request shows: one comment that is found again and edited in place."""
