"""Ways of objects into a cluster: files, git branches, Pulumi, the reconciler; and the doctor."""
