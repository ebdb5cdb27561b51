"""The service: limits and gates for other languages, proxies and hosts."""
