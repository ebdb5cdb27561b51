"""The limiter: its verbs, in memory and on a shared engine, and the permits it hands out."""
