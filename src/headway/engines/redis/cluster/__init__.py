"""What only a Redis Cluster needs."""
