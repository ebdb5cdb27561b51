"""The service: the limits of a company in one place, for every language and every proxy."""
