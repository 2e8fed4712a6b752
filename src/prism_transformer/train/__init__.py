"""Training: from shards to checkpoints, exact to the last bit on a CPU."""
