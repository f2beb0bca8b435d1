"""Break the cluster on purpose, by seed.

python -m tests.sim --seeds 0:500            500 schedules; says which promise broke, and when
python -m tests.sim --seed 7 --trace         the story of one schedule, the same each time
python -m tests.sim --mutations              how many seeds each seeded bug takes to be caught
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.sim.markers import MARKERS
from tests.sim.mutations import MUTATIONS, Mutation
from tests.sim.run import Result, run_seed

T = TypeVar("T")
R = TypeVar("R")

#: Schedules of one worker process, which then makes room for a fresh one.
TASKS_PER_PROCESS = 50


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings have the same order in every run, then
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    options = _options()
    from ecstore import warmup

    warmup.warm_up()
    gc.collect()
    gc.freeze()  # what is loaded by now stays: looking through it after each run would take longer than the run
    return _hunt_mutations(options) if options.mutations is not None else _run_seeds(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:100", metavar="A:B", help="seeds A to B-1 (default 0:100)")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--trace", action="store_true", help="print the story of each schedule")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--markers", action="store_true", help="print how often each rare path was taken")
    parser.add_argument("--require-markers", action="store_true", help="the same, and fail when one was not taken")
    parser.add_argument("--mutations", nargs="*", metavar="NAME", help="hunt these seeded bugs, or all of them")
    parser.add_argument("--tries", type=int, default=300, help="seeds a seeded bug may take (default 300)")
    parser.add_argument("--known-first", action="store_true", help="try the seed first that caught it before")
    parser.add_argument("--json", metavar="FILE", help="write what was found there, too")
    return parser.parse_args()


def _each(work: Callable[[T], R], items: Iterable[T], jobs: int) -> Iterator[R]:
    """`work` of each item, as they come, in so many processes."""
    if jobs <= 1:
        yield from map(work, items)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=TASKS_PER_PROCESS) as pool:
        yield from pool.imap_unordered(work, items)


# -- schedules -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Total:
    passed: int = 0
    failed: list[Result] = field(default_factory=list)
    markers: Counter[str] = field(default_factory=Counter)
    callbacks: int = 0
    pushes: int = 0
    virtual_s: float = 0.0

    def add(self, result: Result) -> None:
        self.markers += result.markers
        self.callbacks += result.callbacks
        self.pushes += result.pushes
        self.virtual_s += result.virtual_s
        if result.failures:
            self.failed.append(result)
        else:
            self.passed += 1

    def to_json(self) -> dict[str, Any]:
        failed = [{"seed": result.seed, "failures": list(map(str, result.failures))} for result in self.failed]
        return {"passed": self.passed, "failed": failed, "markers": dict(sorted(self.markers.items()))}


def _run_seeds(options: argparse.Namespace) -> int:
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    else:
        first, _, last = options.seeds.partition(":")
        seeds = range(int(first), int(last))
    began = time.perf_counter()
    total = _Total()
    for result in _each(run_seed, seeds, min(options.jobs, len(seeds))):
        total.add(result)
        if options.trace:
            print("\n".join(result.story))
            print(f"trace {result.digest}")
        _say_failures(result)
    if options.markers or options.require_markers:
        for name in [*MARKERS, *sorted(total.markers.keys() - MARKERS.keys())]:
            print(f"{total.markers[name]:9}  {name}")
    if options.json:
        Path(options.json).write_text(json.dumps(total.to_json(), indent=2) + "\n")
    seconds = time.perf_counter() - began
    print(
        f"{seconds:.1f} s: {total.virtual_s:,.0f} virtual seconds, {total.pushes:,} pushes, {total.callbacks:,} "
        f"callbacks; {len(seeds) / seconds * 3600:,.0f} schedules an hour"
    )
    if total.failed:
        print(f"replay one with: python -m tests.sim --seed {total.failed[0].seed} --trace")
    missed = [name for name in MARKERS if not total.markers[name]] if options.require_markers else []
    if missed:
        print(f"rare paths that were not taken: {', '.join(missed)}")
    print(f"{total.passed} passed, {len(total.failed)} failed")
    return 1 if total.failed or missed else 0


def _say_failures(result: Result) -> None:
    for number, failure in enumerate(result.failures[:5]):
        print(f"seed {result.seed} FAILED: {failure}" if number == 0 else f"    {failure}", flush=True)


# -- seeded bugs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Hunt:
    name: str
    tries: int
    known_first: bool


@dataclass(frozen=True, slots=True)
class _Caught:
    name: str
    seeds: int  #: tried, the last of which caught it; all of them when none did
    seed: int | None
    failure: str
    others: list[str]  #: what other checkers said meanwhile

    def __str__(self) -> str:
        if self.seed is None:
            also = f"; others said {', '.join(self.others)}" if self.others else ""
            return f"SURVIVED {self.seeds} seeds: {self.name}{also}"
        return f"{self.seeds:4} seeds: {self.name}\n            seed {self.seed}, {self.failure}"


def _hunt(hunt: _Hunt) -> _Caught:
    mutation: Mutation = MUTATIONS[hunt.name]
    seeds = list(range(hunt.tries))
    if hunt.known_first:
        seeds = [mutation.seed, *(seed for seed in seeds if seed != mutation.seed)]
    others: set[str] = set()
    for number, seed in enumerate(seeds):
        failures = run_seed(seed, mutate=mutation).failures
        for failure in failures:
            if failure.checker in mutation.caught_by:
                return _Caught(hunt.name, number + 1, seed, str(failure), sorted(others))
        others |= {failure.checker for failure in failures}
    return _Caught(hunt.name, len(seeds), None, "", sorted(others))


def _hunt_mutations(options: argparse.Namespace) -> int:
    names = options.mutations or list(MUTATIONS)
    unknown = [name for name in names if name not in MUTATIONS]
    if unknown:
        print(f"no seeded bug {unknown[0]!r}; there are:", *MUTATIONS, sep="\n  ")
        return 2
    caught: dict[str, Any] = {}
    hunts = [_Hunt(name, options.tries, options.known_first) for name in names]
    for found in _each(_hunt, hunts, min(options.jobs, len(hunts))):
        print(found, flush=True)
        caught[found.name] = {"seeds": found.seeds, "seed": found.seed, "failure": found.failure}
    if options.json:
        Path(options.json).write_text(json.dumps(caught, indent=2) + "\n")
    survived = sum(entry["seed"] is None for entry in caught.values())
    print(f"{len(caught) - survived} caught, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
