"""The demo: a crowd of workers, a strict API in another process, and two ways to limit the crowd.

`api` is the API (its own process, its own clock), `host` starts it and sends requests, `crowd` has the workers and what
they saw, `token_bucket` the usual way to throttle them, `score` the figures. `headway demo` puts them on the screen;
`python -m headway.lab.demo.soak` runs 200 tasks and 32 threads against the same API for longer. The clients of
`headway try` are in `service_traffic`.
"""
