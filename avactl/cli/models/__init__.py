"""Commands that list versions of models, and deploy them by a commit."""
