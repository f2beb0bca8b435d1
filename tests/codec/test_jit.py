"""Compiled code is cached by the text of all that is in it, also of what is inlined from another file."""

import importlib
import itertools
import sys

import pytest

from ecstore import jit

INLINED = """
from llvmlite import ir
from numba.core import types
from ecstore.jit import inlined

def _emit(typing_context):
    def generate(context, builder, signature, arguments):
        return ir.IntType(64)({number})
    return types.int64(), generate

number = inlined(_emit)
"""

KERNEL = """
from ecstore.jit import kernel
from {inlined} import number

@kernel
def doubled():
    return 2 * number()
"""

_names = itertools.count()


@pytest.fixture
def doubled(tmp_path, monkeypatch):
    """Write both files with a number, import them anew, run the kernel; (result, whether it came from the cache)."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    names = [f"jit_test_{next(_names)}" for _ in range(2)]

    def run(number):
        (tmp_path / f"{names[0]}.py").write_text(INLINED.format(number=number))
        (tmp_path / f"{names[1]}.py").write_text(KERNEL.format(inlined=names[0]))
        for name in names:
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        jit._digest.cache_clear()  # a process reads a file once
        module = importlib.import_module(names[1])
        assert module.doubled.__qualname__ == "doubled"
        result = module.doubled()
        return result, bool(module.doubled.stats.cache_hits)

    yield run
    for name in names:
        sys.modules.pop(name, None)


def test_a_kernel_is_compiled_again_when_what_it_inlines_has_changed(doubled, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python's own cache looks at seconds and sizes alone
    assert doubled(1) == (2, False)
    assert doubled(1) == (2, True)
    assert doubled(3) == (6, False)
    assert doubled(1) == (2, True)
