"""Checks of tiers and datasets on Alluxio."""
