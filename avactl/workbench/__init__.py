"""Work of people beside the cluster: jobs, local runs, imports, new repositories, pictures."""
