"""Kubernetes objects as the scheduler keeps them: parsed once, bounded, and as small as placement allows."""
