"""Canary rollouts under load: a real gateway, real model servers as processes, and the real daemon."""
