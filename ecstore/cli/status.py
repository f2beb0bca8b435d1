"""`ecstore status`: how a running cluster is doing."""

from __future__ import annotations

import argparse
from typing import Any

from ecstore.cli.output import Output, add_json_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Exit code 1 when a group is lost or, with --verify, when any parity is wrong or cannot be checked."
    parser.add_argument(
        "--connect", default="127.0.0.1:7400", metavar="HOST:PORT", help="any node, or several (default %(default)s)"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="go on showing it until Ctrl-C: a live view on a terminal, else plain lines",
    )
    parser.add_argument(
        "--watch-for", type=float, metavar="S", help="the same for so many seconds (with --watch or without it)"
    )
    parser.add_argument(
        "--verify", action="store_true", help="encode every group's data again and compare with its parity"
    )
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="for the check (default %(default)s)")
    add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    import ecstore
    from ecstore.cli.watching import watch
    from ecstore.errors import ConfigError
    from ecstore.verify import verify

    out = Output(options.json)
    if options.watch or options.watch_for is not None:
        if options.verify or options.json:
            raise ConfigError("--watch goes alone: --verify and --json report once, at the end")
        return watch(options.connect, out.stream, options.watch_for)
    with ecstore.connect(options.connect, timeout=5.0) as store:
        status = store.status()
        lost = [group.gid for group in store.cluster_map.groups if group.lost]
    _show(out, status)
    ok = not lost
    status["lost_groups"] = lost
    if lost:
        out.line(f"LOST groups: {', '.join(map(str, lost))}; their keys give DataLossError, all others go on")
    if options.verify:
        report = verify(options.connect, timeout=options.timeout)
        out.line(report.describe())
        status["verify"] = report.to_json()
        ok = ok and report.ok
    out.report({"ok": ok} | status)
    return 0 if ok else 1


def _show(out: Output, status: dict[str, Any]) -> None:
    health = status["health"]
    out.line(f"cluster {status['cluster']}, epoch {status['epoch']}")
    tolerated = health["losses_tolerated"]
    out.line(
        f"{health['groups']} groups: {health['ok']} ok, {health['degraded']} degraded, {health['at_risk']} at risk, "
        f"{health['lost']} lost, {health['moving']} moving"
        + ("" if tolerated is None else f"; any {tolerated} more nodes may be lost now")
    )
    mute = sorted(name for name, node in status["nodes"].items() if "error" in (node["statistics"] or {}))
    if mute:
        out.line(f"NO ANSWER from {', '.join(mute)}: the line above is what was agreed on last; `--watch` tells more")
    for name, node in sorted(status["nodes"].items()):
        said = node["statistics"] or {}
        figures = (
            f"{said['rows']:,} rows, {said['data_shards']} data and {said['parity_shards']} parity shards, "
            f"{said['rss_bytes'] / (1 << 20):.0f} MiB"
            if "rows" in said
            else str(said.get("error", ""))
        )
        why = f" ({node['down_reason']})" if node["down_reason"] else ""
        out.line(f"  {name}  {node['address']}  {node['state']}{why}, incarnation {node['incarnation']}  {figures}")
        for entry in said.get("recoveries", []):
            if entry["finished_at"] is None:
                out.line(
                    f"    {entry['kind']} shard {entry['shard']} of group {entry['group']} from {entry['lost_node']}: "
                    f"{entry['rows_decoded']:,} of {entry['rows_total']:,} rows"
                )
    for name, spec in sorted(status["tables"].items()):
        out.line(f"  table {name}: dim {spec['dim']}, {spec['optimizer']['kind']}, {spec['code']}")
