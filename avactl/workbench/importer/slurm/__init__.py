"""Import of Slurm's batch scripts."""
