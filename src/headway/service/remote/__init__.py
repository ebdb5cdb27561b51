"""The service as the engine of other processes: what `http://` speaks to (`headway.engines.http`).

    routes      POST /v1/engine and GET /v1/engine/events
    sessions    all sessions of a server, and the end of those that were not heard of for long
    session     one client process: its commands, each applied once, and what it is told
    limiters    one limiter of a session: commands of the seam on the service's engine, and waiting for a client
    gates       one gate of a session, and watching it for a client

Commands go through the seam (`headway.engines.base`) to the service's own engine, under the name that the client's
limiter has: a process that names that engine itself shares the ledgers.
"""
