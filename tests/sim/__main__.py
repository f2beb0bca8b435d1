"""`python -m tests.sim --seeds 0:500`, `python -m tests.sim --seed 7 --trace`."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings have the same order in every run, then
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", default="0:100", metavar="A:B", help="seeds A to B-1 (default 0:100)")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--trace", action="store_true", help="print the story of each schedule")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--markers", action="store_true", help="print how often each rare path was taken")
    options = parser.parse_args()
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    else:
        first, _, last = options.seeds.partition(":")
        seeds = range(int(first), int(last))
    return _run_all(seeds, options)


def _run_all(seeds: range, options: argparse.Namespace) -> int:
    from ecstore import warmup
    from tests.sim.run import Result, run_seed

    warmup.warm_up()
    gc.collect()
    gc.freeze()  # what is loaded by now stays: looking through it after each run would take longer than the run
    began = time.perf_counter()
    failed: list[Result] = []
    markers: Counter[str] = Counter()
    passed = callbacks = pushes = 0
    virtual_s = 0.0
    jobs = min(options.jobs, len(seeds))
    pool = multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=50) if jobs > 1 else None
    for result in pool.imap_unordered(run_seed, seeds) if pool is not None else map(run_seed, seeds):
        markers += result.markers
        callbacks, pushes, virtual_s = (
            callbacks + result.callbacks,
            pushes + result.pushes,
            virtual_s + result.virtual_s,
        )
        if options.trace:
            print("\n".join(result.story))
            print(f"trace {result.digest}")
        if result.failures:
            failed.append(result)
            print(f"seed {result.seed} FAILED: {result.failures[0]}", flush=True)
            for failure in result.failures[1:5]:
                print(f"    {failure}")
        else:
            passed += 1
    if pool is not None:
        pool.close()
        pool.join()
    if options.markers:
        for name, count in sorted(markers.items()):
            print(f"{count:9}  {name}")
    seconds = time.perf_counter() - began
    print(
        f"{seconds:.1f} s: {virtual_s:,.0f} virtual seconds, {pushes:,} pushes, {callbacks:,} callbacks; "
        f"{len(seeds) / seconds * 3600:,.0f} schedules an hour"
    )
    if failed:
        print(f"replay one with: python -m tests.sim --seed {failed[0].seed} --trace")
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
