"""The walls of docs/ARCHITECTURE.md, checked in the source text with `ast`: nothing is imported, nothing runs.

A rule is a function from sources to problems, so each one is shown a violation of its own below as well: a rule that
sees nothing would otherwise look like a rule that is kept.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Longest file. What does not fit into some screens is not read, it is searched.
MAX_LINES = 600

#: Everything that decides whether bytes are right, or what the next map is. A schedule of such code is a seed: tests
#: run thousands of them, and two machines given the same input do the same. `*` stands for one name.
PURE = (
    "ecstore_admin.dashboard.charts", "ecstore_admin.dashboard.health", "ecstore_admin.dashboard.markup",
    "ecstore_admin.dashboard.recoveries", "ecstore_admin.dashboard.ring", "ecstore_admin.dashboard.snapshot",
    "ecstore_admin.dashboard.training", "ecstore_admin.dashboard.view", "ecstore_admin.dashboard.words",
    "ecstore_admin.silence",
    "ecstore.checksum", "ecstore.folding", "ecstore.intrinsics", "ecstore.prefetch", "ecstore.codec",
    "ecstore.codec.*", "ecstore.errors", "ecstore.jit", "ecstore.limits",
    "ecstore.tables", "ecstore.optim", "ecstore.hashing", "ecstore.routing", "ecstore.wire",
    "ecstore.cluster.placement", "ecstore.cluster.map",
    "ecstore.cluster.draft", "ecstore.cluster.transitions", "ecstore.cluster.moves",
    "ecstore.transport.hello", "ecstore.transport.limits", "ecstore.transport.errors", "ecstore.transport.receiver",
    "ecstore.node.config", "ecstore.node.data_shard", "ecstore.node.decoding", "ecstore.node.dedupe",
    "ecstore.node.deltalog", "ecstore.node.durations", "ecstore.node.index", "ecstore.node.kernels",
    "ecstore.node.keylist", "ecstore.node.messages", "ecstore.node.recovery", "ecstore.node.rowstore",
    "ecstore.node.sink_shard", "ecstore.node.scrubbing", "ecstore.node.slab", "ecstore.node.trainers",
    "ecstore.throttle", "ecstore.training", "ecstore.faults.rules",
    "ecstore.trainer.data", "ecstore.trainer.metrics", "ecstore.trainer.model", "ecstore.trainer.source",
    "ecstore.trainer.synthetic",
)  # fmt: skip

#: May be imported by pure code although it is not on the list: a pool of memory per thread. It changes where an array
#: lies, never what is in it.
NEUTRAL = ("ecstore.buffers",)

#: What makes a result depend on more than the arguments. `mmap` is not here: a slab is memory.
IMPURE = frozenset(
    {
        "asyncio", "socket", "select", "selectors", "ssl", "time", "datetime", "os", "signal", "subprocess",
        "multiprocessing", "logging", "threading", "concurrent", "queue", "random", "secrets", "uuid", "tempfile",
        "uvloop", "httpx", "fastapi", "uvicorn",
    }
)  # fmt: skip

#: Who may not import what, and why. The first name is a package or module, with everything below it.
WALLS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("ecstore.trainer", ("ecstore.node", "ecstore.coordination", "ecstore.transport", "ecstore.wire", "ecstore.client"),
     "training uses the public client: what it can do, every user can"),
    ("examples", ("ecstore.node", "ecstore.coordination", "ecstore.transport", "ecstore.wire", "ecstore.client"),
     "an example shows the public interface"),
    ("ecstore_admin", ("ecstore.node", "ecstore.cluster.draft"),
     "the admin service observes nodes over the wire: one that shares their memory or code hides what they say"),
    ("ecstore.client", ("ecstore.node", "ecstore.coordination", "ecstore.launcher", "ecstore.trainer"),
     "a client knows messages, not the inside of a node"),
    ("ecstore.node", ("ecstore.client", "ecstore.launcher", "ecstore.trainer", "ecstore.demo", "ecstore_admin"),
     "a node serves; it knows nobody above it"),
    ("ecstore.coordination", ("ecstore.node", "ecstore.client", "ecstore.launcher", "ecstore.trainer", "ecstore_admin"),
     "a backend holds one value and decides nothing"),
    ("ecstore.faults", ("ecstore.node", "ecstore.client", "ecstore.coordination", "ecstore.cluster", "ecstore_admin"),
     "faults happen to bytes and know nothing of what they mean"),
    ("ecstore.transport",
     ("ecstore.node", "ecstore.faults", "ecstore.client", "ecstore.coordination", "ecstore.cluster.map"),
     "connections carry frames and do not know what is in them"),
)  # fmt: skip

#: Entry points: started by a person, a script of pyproject.toml or `python -m`, hence imported by nobody.
ENTRY_POINTS = frozenset({"ecstore", "ecstore.aio", "ecstore.cli"})


@dataclass(frozen=True)
class Source:
    """One Python file. `module` is its dotted name ("ecstore.node.slab", "tests.test_x", "examples.x")."""

    path: str
    module: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def imports(self) -> tuple[tuple[int, str], ...]:
        """(line, dotted name) of everything imported at run time; `from a import b` gives a and a.b."""
        return tuple(_imports(self, self.tree.body))

    def within(self, *packages: str) -> bool:
        return any(self.module == name or self.module.startswith(f"{name}.") for name in packages)


def _imports(source: Source, body: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(source, node.orelse)  # names for the type checker only
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = source.module.split(".")
                above = above[: len(above) - node.level + source.path.endswith("__init__.py")]
                base = ".".join([*above, *([base] if base else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        else:
            yield from _imports(source, list(ast.iter_child_nodes(node)))


def sources(root: Path = ROOT) -> list[Source]:
    """Every Python file of the project. Files that vanish while we look are not there."""
    found = []
    for folder, base in (
        ("ecstore", ""), ("admin/ecstore_admin", "admin"), ("examples", ""), ("benchmarks", ""), ("tests", ""),
    ):  # fmt: skip
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / base).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            try:
                found.append(Source(str(path.relative_to(root)), module, path.read_text(encoding="utf-8")))
            except FileNotFoundError:
                continue
    return found


def _product(files: Sequence[Source]) -> list[Source]:
    return [source for source in files if source.within("ecstore", "ecstore_admin")]


def _is_pure(module: str) -> bool:
    parent = module.rpartition(".")[0]
    return module in PURE or f"{parent}.*" in PURE


# -- rules: sources -> problems ----------------------------------------------------------------------------------


def pure_code_is_pure(files: Sequence[Source]) -> list[str]:
    """Time, chance, files and sockets come in as arguments or not at all."""
    problems = []
    for source in files:
        if not _is_pure(source.module):
            continue
        problems += [
            f"{source.path}:{line}: imports {name}; take time, chance and events as arguments"
            for line, name in source.imports
            if name.partition(".")[0] in IMPURE
        ]
    return problems


def pure_code_imports_pure_code(files: Sequence[Source]) -> list[str]:
    """Else the clock comes in by the back door, one import further."""
    modules = {source.module for source in files}
    return [
        f"{source.path}:{line}: imports {name}, which is not pure; move what is needed to a pure module"
        for source in files
        if _is_pure(source.module)
        for line, name in source.imports
        if name in modules and name.count(".") and not _is_pure(name) and name not in NEUTRAL
        and name != "ecstore.node"  # the package itself is empty; see `packages_of_pure_code_are_empty`
    ]  # fmt: skip


def packages_of_pure_code_are_empty(files: Sequence[Source]) -> list[str]:
    """Importing `ecstore.node.slab` runs `ecstore/node/__init__.py`: no event loop may come with it."""
    return [
        f"{source.path}:{line}: {source.module} imports {name}; keep this package's __init__ free of imports"
        for source in files
        if source.module == "ecstore.node" and source.path.endswith("__init__.py")
        for line, name in source.imports
    ]


def numpy_chance_is_seeded(files: Sequence[Source]) -> list[str]:
    """`np.random.x()` draws from one hidden state for the whole process: no run could be repeated (G8)."""
    allowed = {"Generator", "SeedSequence", "PCG64", "Philox", "BitGenerator"}
    problems = []
    for source in _product(files):
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Attribute) or ast.unparse(node.value) not in ("np.random", "numpy.random"):
                continue
            if node.attr not in allowed | {"default_rng"}:
                problems.append(f"{source.path}:{node.lineno}: np.random.{node.attr}; use a Generator from a seed")
        problems += [
            f"{source.path}:{node.lineno}: default_rng() without a seed"
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Call) and not node.args and not node.keywords
            and ast.unparse(node.func).endswith("random.default_rng")
        ]  # fmt: skip
    return problems


def walls_stand(files: Sequence[Source]) -> list[str]:
    """See WALLS for the reason of each."""
    return [
        f"{source.path}:{line}: {source.module} imports {name}: {reason}"
        for package, forbidden, reason in WALLS
        for source in files
        if source.within(package)
        for line, name in source.imports
        if any(name == other or name.startswith((f"{other}.", f"{other}_")) for other in forbidden)
    ]


def only_the_command_line_prints(files: Sequence[Source]) -> list[str]:
    """Standard output belongs to whoever started the program; a library that prints breaks `--json -`.

    A file with a `__main__` block is a process of its own and may write to its streams.
    """
    problems = []
    for source in _product(files):
        name = Path(source.path).name
        command_line = source.within("ecstore") and (source.within("ecstore.cli") or name == "__main__.py")
        if command_line:
            continue
        program = any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in source.tree.body)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "builtins.print", "pprint"):
                problems.append(f"{source.path}:{node.lineno}: print(); log it, return it, or raise it")
            if not program and isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr"):
                problems.append(f"{source.path}:{node.lineno}: {ast.unparse(node)}; take a stream as an argument")
    return problems


_ALL_ERRORS = frozenset({"Exception", "BaseException"})


def no_error_is_swallowed(files: Sequence[Source]) -> list[str]:
    """Whoever catches *everything* must do something with it: a fault nobody hears of is found by its damage."""
    problems = []
    for source in files:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ExceptHandler):
                if node.type is None:
                    problems.append(f"{source.path}:{node.lineno}: bare except also catches cancellation; name errors")
                elif _names(node.type) & _ALL_ERRORS and all(_does_nothing(step) for step in node.body):
                    problems.append(f"{source.path}:{node.lineno}: swallows every error; handle, log or narrow it")
            elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress" and any(
                _names(argument) & _ALL_ERRORS for argument in node.args
            ):  # fmt: skip
                problems.append(f"{source.path}:{node.lineno}: suppresses every error; name those that are meant")
    return problems


def _names(node: ast.expr) -> set[str]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return {ast.unparse(part).rpartition(".")[2] for part in parts}


def _does_nothing(step: ast.stmt) -> bool:
    if isinstance(step, ast.Pass | ast.Continue | ast.Break):
        return True
    if isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant):
        return True
    return isinstance(step, ast.Return) and (step.value is None or isinstance(step.value, ast.Constant))


def files_are_short(files: Sequence[Source]) -> list[str]:
    """Tests too: a long test file is where a test is missing and nobody notices."""
    return [
        f"{source.path}: {lines} lines, at most {MAX_LINES}; cut it where its subject changes"
        for source in files
        if (lines := source.text.count("\n")) > MAX_LINES
    ]


def modules_say_what_they_are(files: Sequence[Source]) -> list[str]:
    """The first line of a file answers "is it in here?"; a package's empty `__init__` has nothing to say."""
    return [
        f"{source.path}: no docstring; say in a line what this module is for"
        for source in _product(files)
        if source.tree.body and not ast.get_docstring(source.tree)
    ]


def no_module_is_unused(files: Sequence[Source]) -> list[str]:
    """Code that only tests run is not part of the product: it rots, and is read for nothing.

    Used is what another file of the product, an example or a benchmark imports, and what one names as a string
    (`python -m`, lazy imports by name). Parts of the command line are named by their command. Whatever uses a module
    uses its packages.
    """
    users = [source for source in files if not source.within("tests")]
    used: set[str] = set()
    for source in users:
        used |= {name for _line, name in source.imports if name != source.module}
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100:
                used.add(node.value.partition(":")[0])
                if source.module == "ecstore.cli":
                    used.add(f"ecstore.cli.{node.value}")
    used |= {name.rsplit(".", depth)[0] for name in used for depth in (1, 2)}
    return [
        f"{source.path}: nothing in the product uses {source.module}; delete it, or use it"
        for source in _product(files)
        if source.tree.body and source.module not in used | ENTRY_POINTS and not source.module.endswith(".__main__")
    ]


RULES: tuple[Callable[[Sequence[Source]], list[str]], ...] = (
    pure_code_is_pure, pure_code_imports_pure_code, packages_of_pure_code_are_empty, numpy_chance_is_seeded,
    walls_stand, only_the_command_line_prints, no_error_is_swallowed, files_are_short, modules_say_what_they_are,
    no_module_is_unused,
)  # fmt: skip


# -- tests -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project() -> list[Source]:
    return sources()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_is_kept(rule: Callable[[Sequence[Source]], list[str]], project: list[Source]) -> None:
    problems = rule(project)
    assert not problems, "\n" + "\n".join(problems)


def test_the_lists_name_what_exists(project: list[Source]) -> None:
    """A module that was renamed would leave its wall behind, unseen."""
    modules = {source.module for source in project}
    missing = [name for name in (*PURE, *NEUTRAL, *ENTRY_POINTS) if not name.endswith("*") and name not in modules]
    assert not missing
    assert len(modules) > 60, "the files were not found"


def _made_up(path: str, text: str) -> Source:
    parts = Path(path.removeprefix("admin/")).with_suffix("").parts
    return Source(path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts), text)


_VIOLATIONS = [
    (pure_code_is_pure, "ecstore/node/data_shard.py", "import time\n"),
    (pure_code_is_pure, "ecstore/codec/any_new_file.py", "def f():\n    from os import path\n"),
    (pure_code_is_pure, "ecstore/cluster/placement.py", "if True:\n    import random\n"),
    (pure_code_is_pure, "ecstore/cluster/moves.py", "try:\n    import concurrent.futures\nfinally:\n    pass\n"),
    (pure_code_imports_pure_code, "ecstore/node/slab.py", "from ecstore.node import runtime\n"),
    (pure_code_imports_pure_code, "ecstore/wire.py", "from ecstore.transport.dial import connect\n"),
    (pure_code_imports_pure_code, "ecstore/node/keylist.py", "from .runtime import Runtime\n"),
    (packages_of_pure_code_are_empty, "ecstore/node/__init__.py", "from ecstore.node.service import Node\n"),
    (numpy_chance_is_seeded, "ecstore/trainer/model.py", "import numpy as np\nx = np.random.normal(3)\n"),
    (numpy_chance_is_seeded, "ecstore/demo/run.py", "import numpy as np\nrng = np.random.default_rng()\n"),
    (walls_stand, "ecstore/trainer/train.py", "from ecstore.node.rowstore import RowStore\n"),
    (walls_stand, "admin/ecstore_admin/app.py", "def f():\n    import ecstore.node.service\n"),
    (walls_stand, "examples/first.py", "from ecstore.node import slab\n"),
    (walls_stand, "examples/second.py", "from ecstore.transport import dial\n"),
    (walls_stand, "ecstore/transport/stream.py", "from ecstore.client.session import Session\n"),
    (walls_stand, "ecstore/client/store.py", "from ecstore.node.limits import X\n"),
    (only_the_command_line_prints, "ecstore/node/service.py", "print('hello')\n"),
    (only_the_command_line_prints, "admin/ecstore_admin/server.py", "import sys\nsys.stderr.write('x')\n"),
    (no_error_is_swallowed, "ecstore/x.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    (no_error_is_swallowed, "tests/x.py", "try:\n    f()\nexcept (ValueError, BaseException):\n    ...\n"),
    (no_error_is_swallowed, "ecstore/x.py", "try:\n    f()\nexcept:\n    raise\n"),
    (no_error_is_swallowed, "ecstore/x.py", "def g():\n    try:\n        f()\n    except Exception:\n        return\n"),
    (no_error_is_swallowed, "ecstore/x.py", "import contextlib\nwith contextlib.suppress(Exception):\n    f()\n"),
    (files_are_short, "tests/long.py", "x = 1\n" * (MAX_LINES + 1)),
    (modules_say_what_they_are, "ecstore/x.py", "x = 1\n"),
    (no_module_is_unused, "ecstore/x.py", "x = 1\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "path", "text"), _VIOLATIONS, ids=[f"{rule.__name__}-{i}" for i, (rule, _, _) in enumerate(_VIOLATIONS)]
)
def test_rule_sees_a_violation(
    rule: Callable[[Sequence[Source]], list[str]], path: str, text: str, project: list[Source]
) -> None:
    others = [source for source in project if source.path != path]
    problems = rule([*others, _made_up(path, text)])
    assert any(problem.startswith(path) for problem in problems), f"{rule.__name__} does not see it"


def test_what_is_allowed_is_no_violation() -> None:
    fine = [
        _made_up("ecstore/node/slab.py", '"""Text."""\nimport mmap\n'),
        _made_up("ecstore/cluster/placement.py", '"""Text."""\nif TYPE_CHECKING:\n    import asyncio\n'),
        _made_up("ecstore/cli/new.py", '"""Text."""\nprint("the command line prints")\n'),
        _made_up("ecstore/node/service.py", '"""Text."""\ntry:\n    f()\nexcept Exception as e:\n    log(e)\n'),
        _made_up("examples/a.py", '"""Text."""\nimport ecstore\nfrom ecstore.trainer import train\nprint(1)\n'),
        _made_up("ecstore/node/__init__.py", ""),
        _made_up(
            "ecstore/cli/__init__.py",
            '"""Text."""\nCOMMANDS = ["new"]\nimport ecstore.cluster.placement, ecstore.node.slab\n',
        ),
        _made_up("benchmarks/b.py", "import ecstore.node.service\n"),
    ]
    for rule in RULES:
        assert rule(fine) == []
