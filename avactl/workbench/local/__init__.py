"""Compiled jobs as processes on one machine: `avactl local run`."""

from __future__ import annotations
