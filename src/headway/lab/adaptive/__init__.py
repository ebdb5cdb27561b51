"""A hidden limit, clients that find it, and how much they use of it: worlds in virtual time, drawn from seeds."""
