"""`embedded://`: a private server, started when it is needed."""
