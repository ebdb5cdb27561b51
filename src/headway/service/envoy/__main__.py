"""`python -m headway.service.envoy --config ratelimit.yaml --port 8081`: the service for Envoy alone.

SIGHUP reads the configuration again; one that is wrong changes nothing, and the log says why. SIGTERM and Ctrl-C let
the calls that are under way end.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from headway.errors import HeadwayError
from headway.service.envoy import grpc_server
from headway.service.envoy.config import Config, InvalidConfig, load_config
from headway.service.envoy.decide import RateLimitService
from headway.service.hosts import is_loopback

log = logging.getLogger("headway")


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        "python -m headway.service.envoy", description="A rate limit service for Envoy."
    )
    parser.add_argument(
        "--config", action="append", required=True, metavar="PATH",
        help="a YAML file of envoyproxy/ratelimit's format, or a directory of them; may be given several times",
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=8081, help="0 for any that is free (default: %(default)s)"
    )
    parser.add_argument("--engine", default="memory://", help="where limits are kept (default: %(default)s)")
    parser.add_argument(
        "--on-engine-error", choices=("closed", "open", "local"), default="closed",
        help="what decides while the engine is away (default: %(default)s: Envoy does, by failure_mode_deny)",
    )  # fmt: skip
    parser.add_argument("--namespace", default="envoy", help="services of one name share what was used")
    parser.add_argument(
        "--fixed", action="store_true", help="count rate_limit by the calendar, from zero each time"
    )
    parser.add_argument("--merge", action="store_true", help="let one domain be in several files")
    parser.add_argument("--shadow", action="store_true", help="answer OK, whatever was found")
    parser.add_argument(
        "--transport",
        choices=("nghttp2", "grpcio"),
        help="what carries gRPC (default: nghttp2 where it can be used)",
    )
    parser.add_argument("--insecure", action="store_true", help="listen on another address than loopback")
    options = parser.parse_args(given)
    if not options.insecure and not is_loopback(options.host):
        parser.error(
            f"--host {options.host}: every host that reaches it may use up limits; say --insecure if that is meant"
        )
    return options


def _load(options: argparse.Namespace) -> Config:
    return load_config(options.config, fixed=options.fixed, merge=options.merge)


async def serve(options: argparse.Namespace) -> None:
    """Serve until a signal ends it."""
    engine = {} if options.engine == "memory://" else {"on_engine_error": options.on_engine_error}
    service = RateLimitService(
        _load(options), namespace=options.namespace, shadow=options.shadow, engine=options.engine, **engine
    )
    server = await grpc_server.start(
        service, host=options.host, port=options.port, transport=options.transport
    )

    def reload() -> None:
        try:
            service.use(_load(options))
            log.warning("headway: %d rules were read again", len(service.config.rules()))
        except InvalidConfig as error:
            log.error("headway: the configuration stays as it was: %s", error)

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    rules = len(service.config.rules())
    sys.stdout.write(f"headway: Envoy's rate limit service on {options.host}:{server.port}, {rules} rules\n")
    sys.stdout.flush()
    await ended.wait()
    await server.stop()
    service.close()


def main(given: Sequence[str] | None = None) -> int:
    """The exit code."""
    logging.basicConfig(format="%(message)s")
    options = arguments(given)
    try:
        asyncio.run(serve(options))
    except HeadwayError as error:
        sys.stderr.write(f"headway: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
