"""What headway costs, measured beside its peers in one run: `make bench`, or `python -m bench --help`.

- `figure.py`: what is claimed: a figure, its bar, the reading that answers it
- `timing.py`: how it is measured: generated loops, sides that take turns, medians of ratios
- `alone.py`: a probe in a process of its own
- `calls.py`, `crowd.py`, `keys.py`: one caller, many threads on one limiter, a million keys
- `redis.py`, `fleet.py`, `server.py`: a decision on Redis, many processes that wait there, the server for both
- `prefetch.py`: decisions on borrowed tokens, and what it takes to have them
- `once.py`: events that may happen once: submits, lateness, a million of them
- `crew.py`: workers in processes of their own
- `peers.py`: the other libraries, call for call
- `sections.py`: the list of all that is measured; a new section (another engine, another front end) is one line there
- `report.py`, `page.py`, `chart.py`: the terminal, docs/benchmarks.md, docs/benchmarks.svg
"""
