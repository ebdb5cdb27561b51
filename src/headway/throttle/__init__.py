"""`throttle`: a limit on a function."""
