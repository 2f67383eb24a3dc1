"""The serving daemon on a real control plane."""
