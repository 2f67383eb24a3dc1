"""Import of what a cluster runs: manifests, live objects and Slurm scripts to specs."""
