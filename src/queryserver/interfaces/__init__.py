"""The seams: small async Protocols, nothing else."""
