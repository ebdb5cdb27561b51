"""A process's side of the ledgers on a server: what it knows of them, what it asks, and how commands are batched."""
