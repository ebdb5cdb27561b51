"""Addresses, connections and pools: how a server is reached."""
