"""Run benchmarks and print their table: ``python -m benchmarks [NAME ...] [--quick] [--out
DIR]``."""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

from benchmarks.report import markdown, save, update_table

NAMES = (
    "row_set_codec",
    "row_set_ops",
    "wire_codec",
    "engine_ops",
    "propagation",
    "snapshot",
    "append",
    "viewport",
    "fan_out",
    "scaling",
    "small_writes",
    "stalled_reader",
    "journal_append",
    "journal_recovery",
    "ticking_client",
    "spark_source",
    "spark_snapshot",
    "spark_latency",
    "spark_sink",
    "reconnect_storm",
    "journal_latency",
    "journal_fetch",
    "shared_memory",
    "ucx_transport",
    "bodies",
    "tls",
    "never_blocked",
    "statistics_cost",
    "kept_queries",
    "call_check",
    "connector",
    "flight_get",
    "policy",
    "web_door",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}; default: all"
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes; for trying out, not for quoting"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench"), help="directory for the JSON files"
    )
    parser.add_argument(
        "--update", type=Path, metavar="PAGE", help="also put the table into a page"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    answers = []
    for name in arguments.names or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        started = time.monotonic()
        answers.append(import_module(f"benchmarks.{name}").run(quick=arguments.quick))
        path = save(answers[-1], arguments.out)
        print(f"  {time.monotonic() - started:.0f} s, {path}", file=sys.stderr, flush=True)
    print(markdown(answers))
    if arguments.update is not None:
        update_table(arguments.update, answers, NAMES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
