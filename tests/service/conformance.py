"""schemathesis against a real `headway serve`: no 5xx, and no answer that the OpenAPI description does not have.

    PYTHONPATH=tests python -m tests.service.conformance --examples 300 --seed 7

It makes requests from the description, valid and not, single and in sequences, and judges every answer by it. Names of
limits and gates are random texts in the description, and would be found by no request; so it gets one in which they are
those of this server. Answers are judged by the types of the server's own.

It needs tools of its own: python3 -m venv build/openapi && build/openapi/bin/pip install -r
tests/service/openapi-tools.txt
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.service.processes import served

ROOT = Path(__file__).parent.parent.parent
TOOLS = ROOT / "build" / "openapi" / "bin"
INSTALL = "python3 -m venv build/openapi && build/openapi/bin/pip install -r tests/service/openapi-tools.txt"

CONFIG = """
[server]
engine = "memory://"
drain = 0
[limits.api]
limit = "20/second"
max_keys = 50
[limits.calls]
limit = "1000 concurrent"
[limits.llm]
limit = { requests = "1000/second", tokens = "30000/second" }
[limits.free]
unlimited = true
[gates.orders]
duration = 0.5
[gates.alarms]
duration = 60
mode = "strict"
max_pending = 100000
"""
LIMITS = ["api", "calls", "llm", "free", "nothing"]
GATES = ["orders", "alarms", "nothing"]
ONE_ID = ("acquire", "release", "renew", "put_limit")
"""Of these, the header for an id is left out: with another one in the body, a command is refused."""

SETTINGS = """
generation.database = "none"
request-timeout = 60
# A command with two ids, or with a limit that cannot be, is refused with 422, which no schema can say.
[[operations]]
include-operation-id = "gate_changes"
[operations.checks]
positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 410]
# A name that is not there is told in its place of the batch, with 200.
[[operations]]
include-operation-id = "acquire_each"
[operations.checks]
negative_data_rejection.enabled = false
[[operations]]
include-method = ["POST", "PUT", "DELETE"]
[operations.checks]
positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 410, 422, 429]
"""


def with_names(description):
    """The description, with the names that are there in what requests have."""
    for path, operations in description["paths"].items():
        for operation in operations.values():
            if operation["operationId"] in ONE_ID:
                operation["parameters"] = [one for one in operation["parameters"] if one["in"] != "header"]
            for parameter in operation["parameters"]:
                if parameter["in"] == "path" and parameter["name"] in ("name", "gate"):
                    names = LIMITS if parameter["name"] == "name" else GATES
                    parameter["schema"] = {"enum": [*names, "new"] if path == "/v1/limits/{name}" else names}
    schemas = description["components"]["schemas"]
    for name in ("Take", "Acquire"):
        schemas[name]["properties"]["limit"]["enum"] = LIMITS
    return description


def attack(folder, *, examples, seed, phases="examples,coverage,fuzzing,stateful"):
    """Run it; (whether nothing was found, what it says)."""
    with served(folder, CONFIG) as process:
        description = process.client.get("/openapi.json").body
        file, settings = folder / "openapi.json", folder / "schemathesis.toml"
        file.write_text(json.dumps(with_names(description)))
        settings.write_text(SETTINGS)
        words = ["--url", process.url, "--max-examples", str(examples), "--seed", str(seed)]
        words += ["--phases", phases, "--continue-on-failure", "--no-color"]
        command = [str(TOOLS / "st"), "--config-file", str(settings), "run", str(file), *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert process.child.poll() is None, process.output
        return done.returncode == 0, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=300, help="for each call")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clean, said = attack(Path(folder), examples=options.examples, seed=options.seed)
    sys.stdout.write(said)
    sys.exit(not clean)


if __name__ == "__main__":
    main()
