"""The report of a chaos run: plain data, and a few lines for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ecstore.chaos.driver import COUNTED
from ecstore.chaos.load import growth
from ecstore.chaos.run import ChaosResult
from ecstore.chaos.watch import Seen

#: Nothing may stand still for longer than a failover of a silent node takes on a busy machine: so many detector limits
#: and as many seconds besides.
STARVED_LIMITS: Final = 8.0
STARVED_S: Final = 20.0


def to_json(result: ChaosResult) -> dict[str, Any]:
    """The report. `ok` only if all was done, all was checked, and nothing is in `failures`."""
    said, driver = result.said, result.driver
    rows = [one for name, one in said.items() if name.startswith("counter") and "different" in one]
    trainer = said.get("trainer", {})
    different = sum(one["different"] for one in rows)
    bit_identical = len(rows) == result.options.counters and different == 0
    memory = _memory(result)
    recoveries, starvation = _recoveries(result), _starvation(result)
    failures = list(result.failures)
    failures += [f"{different} rows differ from the model"] if different else []
    failures += [str(trainer["says"])] if trainer.get("equal") is False else []
    failures += [
        f"memory of {one['process']} grew by {100 * one['growth']:.0f} % in {one['seconds']:.0f} s"
        for one in memory
        if not one["ok"]
    ]
    failures += [] if starvation["ok"] else [str(starvation["why"])]
    counts = {name: driver.counts[name] if driver else 0 for name in COUNTED.values()}
    done = bool(result.pushes and result.sums_checked and result.clean_after_s is not None)
    verified = result.verified is not None and result.verified.ok
    return {
        "ok": not failures and done and bit_identical and verified and trainer.get("equal") is True,
        "seed": result.options.seed, "minutes": result.options.minutes, "code": result.options.code,
        "nodes": len(result.watch.map.nodes) if result.watch else 0, "seconds": round(result.seconds, 1),
        "rounds": result.rounds, **counts, "skipped": driver.skipped if driver else [],
        "pushes": result.pushes, "pulls": result.pulls, "in_doubt": result.in_doubt,
        "sums_checked": result.sums_checked, "lost": result.lost, "doubled": result.doubled,
        "rows_compared": sum(one["rows"] for one in rows), "bit_identical": bit_identical,
        "trainer_batches": trainer.get("batches", 0), "trainer_rows": trainer.get("rows", 0),
        "trainer_bit_identical": trainer.get("equal") is True,
        "parity_verified": verified, "parity": result.verified.to_json() if result.verified else None,
        "clean_after_s": None if result.clean_after_s is None else round(result.clean_after_s, 1),
        "memory": memory, "recoveries": recoveries, "starvation": starvation, "failures": failures,
        "timeline": driver.timeline if driver else [],
    }  # fmt: skip


def _memory(result: ChaosResult) -> list[dict[str, Any]]:
    """Every life that was long enough; nodes that were started again count from their start."""
    samples = result.sampler.memory if result.sampler else {}
    told = [(name, pid, growth(series)) for (name, pid), series in sorted(samples.items())]
    return [{"process": name, "pid": pid} | one for name, pid, one in told if one is not None]


def _recoveries(result: ChaosResult) -> dict[str, Any]:
    """By kind: how many, rows, durations in seconds, and the longest time without progress."""
    seen = list(result.watch.recoveries.values()) if result.watch else []
    return {kind: _of_kind([one for one in seen if one.kind == kind]) for kind in ("data", "parity", "move")}


def _of_kind(seen: list[Seen]) -> dict[str, Any]:
    done = [one for one in seen if one.state == "done" and one.finished_at is not None]
    took = sorted(float(one.finished_at or 0.0) - one.started_at for one in done)
    return {
        "begun": len(seen), "done": len(done), "rows": sum(one.rows for one in seen),
        "median_s": round(took[len(took) // 2], 2) if took else None, "longest_s": round(took[-1], 2) if took else None,
        "longest_idle_s": round(_longest(one.idle_s for one in done), 2),
    }  # fmt: skip


def _longest(values: Iterable[float]) -> float:
    return max(values, default=0.0)


def _starvation(result: ChaosResult) -> dict[str, Any]:
    """Load and recovery side by side: neither may hold up the other."""
    if result.sampler is None or result.watch is None:
        return {"ok": True, "why": "", "speeds": {}}
    bound = STARVED_LIMITS * result.options.suspect_after_s + STARVED_S
    speeds = result.sampler.speeds
    gap = _longest(speed.longest_gap_s for speed in speeds.values())
    idle = _longest(one.idle_s for one in result.watch.recoveries.values() if one.state == "done")
    why = ""
    if gap > bound:
        why = f"no push was acknowledged for {gap:.1f} s"
    elif idle > bound:
        why = f"a recovery made no progress for {idle:.1f} s"
    elif speeds["recovery"].seconds > STARVED_S and not speeds["recovery"].pushes:
        why = "no push was acknowledged while anything was being decoded"
    return {
        "ok": not why, "why": why, "bound_s": bound, "longest_gap_s": round(gap, 2),
        "longest_recovery_idle_s": round(idle, 2), "speeds": {name: speed.to_json() for name, speed in speeds.items()},
    }  # fmt: skip


def summary(report: dict[str, Any]) -> list[str]:
    """A few lines for a terminal."""
    hits = ", ".join(f"{report[name]} {name}" for name in COUNTED.values() if report[name])
    lines = [
        f"{report['rounds']} rounds in {report['seconds']:.0f} s: {hits or 'nothing was done'}",
        f"{report['pushes']:,} pushes and {report['pulls']:,} checked pulls; {report['lost']} increments lost, "
        f"{report['doubled']} doubled, {report['in_doubt']} pushes in doubt",
        f"rows bit-identical: {_yes(report['bit_identical'])} ({report['rows_compared']:,}); trainer bit-identical: "
        f"{_yes(report['trainer_bit_identical'])} ({report['trainer_batches']} batches); parity right: "
        f"{_yes(report['parity_verified'])}",
    ]
    speeds = report["starvation"]["speeds"]
    if speeds:
        lines.append(
            f"pushes/s during failovers {speeds['failover']['pushes_per_s']}, while something is decoded "
            f"{speeds['recovery']['pushes_per_s']}, otherwise {speeds['otherwise']['pushes_per_s']}; longest time "
            f"without one {report['starvation']['longest_gap_s']} s"
        )
    grown = max(report["memory"], key=lambda one: float(one["growth"]), default=None)
    if grown is not None:
        lines.append(f"memory: {grown['process']} grew most, by {100 * grown['growth']:.1f} %")
    lines += [f"FAILED: {failure}" for failure in report["failures"]]
    return [*lines, "ok" if report["ok"] else "not ok"]


def _yes(value: bool) -> str:
    return "yes" if value else "NO"
