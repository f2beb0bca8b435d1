"""The `ecstore` command: one small module for each sub-command, imported when it is needed.

Exit codes: 0 all went well; 1 something failed; 2 the command cannot be carried out as given (a wrong option, a port
in use, unreadable data, a code that is too wide for the nodes), told in one line on standard error; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

from ecstore.threads import limit_threads

#: Sub-command -> what it does, in one line. Its module is `ecstore.cli.<name>`.
COMMANDS: Final = {
    "demo": "train a model on a cluster, kill nodes meanwhile, prove that nothing was lost",
    "up": "start a cluster on this machine and keep it running until Ctrl-C",
    "train": "train the bundled DLRM on a running cluster",
    "status": "show how a running cluster is doing; --verify checks its parity",
    "scrub": "let the nodes find and repair flipped bits in data and parity, while training goes on",
    "node": "run one node in the foreground",
    "admin": "run the admin service (REST), which starts and supervises node processes",
    "chaos": "kill, pause and cut off nodes under load for minutes, then check every bit",
    "bench": "measure beside a peer: codec, store, training, recovery, scale",
    "coordination": "run the coordination service",
}


class _Terminated(BaseException):
    """SIGTERM: clean up as after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given[0] if given and given[0] in COMMANDS else None
    limit_threads()
    parser = argparse.ArgumentParser(
        prog="ecstore",
        description="An in-memory, erasure-coded embedding store for recommendation-model training.",
        epilog="`ecstore COMMAND --help` shows the options of a command.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    module: Any = None
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == command:
            module = importlib.import_module(f"ecstore.cli.{name}")
            module.add_arguments(sub)
    options = parser.parse_args(given)
    if options.version:
        from ecstore import __version__

        print(f"ecstore {__version__}")
        return 0
    if module is None:
        parser.print_help(sys.stderr)
        return 2
    return _run(module, options)


def _run(module: Any, options: argparse.Namespace) -> int:
    def terminated(_number: int, _frame: Any) -> None:
        raise _Terminated

    former = signal.signal(signal.SIGTERM, terminated)
    try:
        return int(module.run(options))
    except KeyboardInterrupt:
        print("ecstore: interrupted", file=sys.stderr)
        return 130
    except _Terminated:
        return 143
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has left; nothing more to say
        return 1
    except Exception as error:
        return _explain(error)
    finally:
        signal.signal(signal.SIGTERM, former)


def _explain(error: Exception) -> int:
    """One line for an error that tells what to do; a traceback for a fault of ours. The exit code."""
    from ecstore.errors import EcstoreError, InputError

    while isinstance(error, ExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, EcstoreError):
        print(f"ecstore: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    raise error


if __name__ == "__main__":
    sys.exit(main())
