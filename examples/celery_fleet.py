"""Celery workers under one limit: a partner allows 5 calls a second for each shop, to all workers together.

    pip install '.[redis]' celery
    python examples/celery_fleet.py                    # starts two workers, sends tasks, shows what they did
    celery -A celery_fleet worker                      # or run workers yourself, in examples/, on any machine

Broker, results and the limit are on one Redis or Valkey: SHOP_REDIS=redis://db/0 (redis://127.0.0.1:6379/0 if it is not
said). Orders of both shops and a few reports are sent at once. A worker holds an order that may not be sent yet beside
its pool, until its promised time, so that reports are written meanwhile; no order uses a retry.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from celery import Celery

from headway.integrations.celery import limited

REDIS = os.environ.get("SHOP_REDIS", "redis://127.0.0.1:6379/0")

app = Celery("celery_fleet", broker=REDIS, backend=REDIS)


def shop_of(_task, shop, _order):
    return shop


@app.task(bind=True, max_retries=0)
@limited("5/s burst 1", key=shop_of, name="partner-api", engine=REDIS, engine_timeout=5)
def send(self, shop, order):
    """The call of the partner would be here."""
    return shop, order, self.request.hostname, self.request.retries, time.time()


@app.task
def report():
    return time.time()


def main() -> None:
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "celery_fleet",
        "worker",
        "--concurrency",
        "2",
        "-l",
        "ERROR",
    ]
    quiet = ["--without-gossip", "--without-mingle"]
    workers = [
        subprocess.Popen(
            [*command, *quiet, "-n", f"worker{number}@fleet"],
            cwd=Path(__file__).parent,
            stdout=subprocess.DEVNULL,
        )
        for number in (1, 2)
    ]
    try:
        while len(app.control.ping(timeout=1) or ()) < len(workers):  # both are up
            time.sleep(0.1)
        orders = [send.delay(shop, order) for order in range(15) for shop in ("north", "south")]
        reports = [report.delay() for _ in range(5)]
        written = [one.get(timeout=120) for one in reports]
        sent = [one.get(timeout=120) for one in orders]
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(60)
    for shop in ("north", "south"):
        times = sorted(at for name, *_, at in sent if name == shop)
        print(f"{shop}: {len(times)} orders in {times[-1] - times[0]:.1f} s")
    last = max(at for *_, at in sent)
    print(f"reports before the last order: {sum(at < last for at in written)} of {len(written)}")
    print(f"workers: {len(Counter(host for _, _, host, _, _ in sent))}")
    print(f"retries: {sum(retries for _, _, _, retries, _ in sent)}")


if __name__ == "__main__":
    main()
