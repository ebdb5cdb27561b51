"""The ledgers of a server as a person sees them: for `headway top`, `inspect` and `reset`."""
