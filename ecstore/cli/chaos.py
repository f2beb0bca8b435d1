"""`ecstore chaos`: kill, pause, cut off and slow real node processes under load, then check every bit."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from ecstore.cli.output import Output, add_json_argument

#: Rounds that `--plan` shows for a minute: about as many as happen.
PLANNED_PER_MINUTE = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The schedule (what is done, to whom, for how long) is a function of the seed; what comes of it depends on "
        "timing. Never more nodes are faulty at a time than the code bears. Exit code 0 only if no acknowledged push "
        "was lost or doubled, all rows and the trained model have the bits of an undisturbed run, all parity is right, "
        "nothing starved, and memory is flat."
    )
    parser.add_argument("--minutes", type=float, default=3.0, metavar="N", help="default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule and the load (default %(default)s)")
    parser.add_argument("--nodes", type=int, default=6, metavar="N", help="node processes (default %(default)s)")
    parser.add_argument("--code", default="rs(3,2)", help="rs(k,m) or replicate(r) (default %(default)s)")
    parser.add_argument("--admin", metavar="URL", help="use this running cluster, started with --allow-faults")
    parser.add_argument("--counters", type=int, default=2, metavar="N", help="pushing processes (default %(default)s)")
    parser.add_argument("--rate", type=float, default=30.0, metavar="N",
                        help="pushes a second of each, at most; 0 = no limit (default %(default)s)")  # fmt: skip
    parser.add_argument(
        "--suspect-after", type=float, default=3.0, metavar="S",
        help="limit of the nodes' detector; with --admin that of the running cluster (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--decode-rate", type=float, default=0.5, metavar="MIB",
                        help="MiB a second that one node decodes in the background (default %(default)s)")  # fmt: skip
    parser.add_argument("--clean-within", type=float, default=120.0, metavar="S",
                        help="bound for all to be whole again after a round (default %(default)s)")  # fmt: skip
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="keep state and logs here")
    parser.add_argument("--plan", action="store_true", help="print the schedule and end")
    add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    from ecstore.chaos.options import ChaosOptions
    from ecstore.chaos.plan import rounds
    from ecstore.chaos.report import summary, to_json
    from ecstore.chaos.run import run_chaos

    out = Output(options.json)
    chosen = ChaosOptions(
        minutes=options.minutes, seed=options.seed, nodes=options.nodes, code=options.code, admin=options.admin,
        counters=options.counters, rate=options.rate, suspect_after_s=options.suspect_after,
        decode_mib_per_s=options.decode_rate, clean_within_s=options.clean_within, run_dir=options.run_dir,
    )  # fmt: skip
    if options.plan:
        schedule = rounds(chosen.plan(tuple(f"n{n + 1}" for n in range(chosen.nodes))), random.Random(chosen.seed))
        planned = [next(schedule) for _ in range(max(1, round(PLANNED_PER_MINUTE * chosen.minutes)))]
        for one in planned:
            out.line(f"round {one.number}: {'; '.join(action.describe() for action in one.actions)}")
        out.report({"seed": chosen.seed, "rounds": [one.to_json() for one in planned]})
        return 0
    report = to_json(run_chaos(chosen, out.line))
    for line in summary(report):
        out.line(line)
    out.report(report)
    return 0 if report["ok"] else 1
