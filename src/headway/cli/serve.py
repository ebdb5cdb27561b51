"""`headway serve`: limits and gates for every language over HTTP, and limits for Envoy proxies over gRPC."""

from __future__ import annotations

import json
import os
import shlex
import ssl
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import bad_option
from headway.cli.serving import check_origins, complaints, need, state_engine
from headway.cli.words import count, shown
from headway.engines.uri import public
from headway.printable import printable

if TYPE_CHECKING:
    from headway.service.envoy.rules import Rule
    from headway.service.service import Service

DEFAULT_FILE = Path("headway.toml")


def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file with limits, gates and tokens; it is read again when it changes.  "
            "[default: headway.toml, if it is there]",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Where ledgers are kept: embedded://DIR, redis://..., memory://.  "
            "[default: what the file says, or embedded:// in ~/.local/state/headway/serve]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="The address to listen on.  [default: 127.0.0.1]", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="The port; 0: any that is free.  [default: 8080]", show_default=False
        ),
    ] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port of gRPC for Envoy proxies, where the file has \\[envoy]; 0: any that is free.  "
            "[default: what the file says, or 8081]",
            show_default=False,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Listen on an address that other machines can reach, without tokens."
        ),
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="A certificate chain, in PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, in PEM.")] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="Pages of this origin may connect, too: https://ops.example.", metavar="ORIGIN"),
    ] = None,
) -> None:
    """Serve limits and gates over HTTP, until Ctrl-C.

    headway serve --config headway.toml

    The file is read again when it changes, or at SIGHUP; a file that is wrong changes nothing. SIGTERM and Ctrl-C end
    the server gracefully, with exit code 0. It is 2 if something in the file or an option is wrong, and 3 if the engine
    does not answer.
    """
    need("serve", "starlette", "uvicorn", "httptools", "websockets", "msgspec", "prometheus_client")
    from headway.service.config import Config, parse_config
    from headway.service.running import listen, url_of
    from headway.service.server import serve as run
    from headway.service.service import check_exposure

    tls = checked_tls(tls_cert, tls_key)
    check_origins(origin or ())
    file = config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    with complaints():
        found = Config() if file is None else parse_config(read(file), str(file), os.environ)
        if grpc_port is not None and found.envoy is None:
            raise bad_option("--grpc-port", "the file has no [envoy] with limits, so nothing is served there")
        if found.envoy is not None:
            need("serve", "yaml")
        address = host or found.server.host
        check_exposure(found, address, insecure, str(file or ""))
        where = engine or found.server.engine
        if where == "embedded://":
            where = state_engine("serve")
        with listen(address, found.server.port if port is None else port) as listener:
            url = url_of(listener) if tls is None else url_of(listener).replace("http:", "https:", 1)
            run(
                found,
                listener,
                engine=where,
                host=address,
                insecure=insecure,
                file=file,
                tls=tls,
                grpc_port=grpc_port,
                origins=origin or (),
                ready=lambda service: typer.echo(greeting(url, service)),
                told=tell,
            )
    typer.echo("headway: ended")


def tell(line: str) -> None:
    """Say on stderr what a reload has done. It is done also where what reads stderr has gone."""
    with suppress(OSError):
        typer.echo(f"headway: {printable(line)}", err=True)


def read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise bad_option("--config", f"{printable(str(file))} cannot be read: {why}") from None


def checked_tls(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """The pair, if it is one that a server can use."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise bad_option("--tls-key" if key is None else "--tls-cert", "give both --tls-cert and --tls-key")

    def no_password() -> str:
        # Without this OpenSSL asks at the terminal, for each time that the key is read.
        raise bad_option("--tls-key", f"{printable(str(key))} has a password; give a key without one")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, no_password)
    except OSError as error:  # ssl.SSLError is one
        raise bad_option(
            "--tls-cert", f"{printable(str(certificate))} and its key cannot be used: {error}"
        ) from None
    return certificate, key


def greeting(url: str, service: Service) -> str:
    """What is served where, and what to try: every line can be pasted into a shell."""
    names = [served.name for served in service.limits]
    what = f"{count(len(names), 'limit')} and {count(len(service.gates), 'gate')}"
    lines = [f"headway: {what} on {public(service.engine)}; Ctrl-C ends it"]
    width = max(map(len, [*names, *service.gates]), default=0)
    lines += [f"  {served.name:<{width}}  {shown_limit(served.config.text)}" for served in service.limits]
    lines += [
        f"  {name:<{width}}  gate, {gate.mode}, {gate.duration:g} s" for name, gate in service.gates.items()
    ]
    if service.envoy is not None:
        where = f"{service.host.strip('[]')} port {service.envoy.port}"
        rules = count(len(service.envoy.service.config.rules()), "rule")
        lines += ["", f"  {rules} for Envoy, gRPC on {where}"]
    token = " -H 'Authorization: Bearer TOKEN'" if service.tokens else ""
    lines += [
        "",
        f"  {url}/    the console",
        f"  {url}/openapi.json    the API",
        f"  {url}/metrics    figures for Prometheus",
        "",
    ]
    lines.append("Try, in another terminal:")
    if service.envoy is not None:
        for rule in service.envoy.service.config.rules()[:1]:
            lines.append(f"  curl -s{token} --json {shlex.quote(asked_by_envoy(rule))} {url}/json")
    limit = names[0] if names else "demo"
    if not names:
        body = json.dumps({"limit": "3/minute"})
        lines.append(f"  curl -s{token} -X PUT --json '{body}' {url}/v1/limits/{limit}")
    body = json.dumps({"limit": limit, "key": "alice"})
    lines.append(f"  curl -s{token} --json '{body}' {url}/v1/acquire")
    lines.append(f"  curl -s{token} '{url}/v1/limits/{limit}/status?key=alice'")
    return "\n".join(lines)


def asked_by_envoy(rule: Rule) -> str:
    """What an Envoy would ask this rule, as JSON.

    >>> from headway.service.envoy.rules import Rule
    >>> from headway.service.envoy.messages import Entry
    >>> asked_by_envoy(Rule("shop", (Entry("user"),), None))
    '{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}'
    """
    entries = [{"key": key, "value": value.replace("*", "1") or "alice"} for key, value in rule.path]
    return json.dumps({"domain": rule.domain, "descriptors": [{"entries": entries}]})


def shown_limit(text: str) -> str:
    return text if text.isprintable() else shown(text)
