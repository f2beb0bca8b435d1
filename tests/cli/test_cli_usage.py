"""Wrong use of the command line: exit code 2 and one clear line; help everywhere."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from ecstore.cli import COMMANDS, main
from ecstore.launcher.ports import free_ports


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """The one line on standard error."""
    assert main(arguments) == code
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert "Traceback" not in line
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "usage: ecstore" in capsys.readouterr().out


def test_no_command_and_unknown_options(capsys):
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().err
    for wrong in (["nope"], ["demo", "--nope"], ["up", "--nodes", "many"]):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("demo", "--code", "rs(5,3)"), "rs(5,3) needs 8 nodes and there are 6"),
        (("demo", "--code", "rs(three)"), "unknown code"),
        (("demo", "--data", "/no/such/file"), "/no/such/file"),
        (("demo", "--nodes", "3", "--code", "rs(2,1)", "--kill", "2"), "one after the other"),
        (("demo", "--kill", "6"), "at least one"),
        (("demo", "--json", "/no/such/folder/file"), "--json"),
        (("demo", "--batches", "0"), "at least 1"),
        (("up", "--nodes", "0"), "1 to 64"),
        (("up", "--port-base", "65535"), "65536"),
        (("node", "--name", "", "--listen", "127.0.0.1:0"), "node name"),
        (("node", "--name", "n1", "--listen", "here"), "host:port"),
        (("admin", "--listen", "0.0.0.0:0", "--run-dir", "/tmp"), "token"),
        (("admin", "--token-file", "/no/such/file"), "/no/such/file"),
    ],
)
def test_what_cannot_be_is_one_line_and_code_2(capsys, monkeypatch, arguments, says):
    monkeypatch.delenv("ECSTORE_ADMIN_TOKEN", raising=False)
    assert says in fails(capsys, 2, *arguments)


def test_ports_in_use(capsys):
    (base,) = free_ports(1)
    with socket.create_server(("127.0.0.1", base)):
        for arguments in (
            ("up", "--nodes", "3", "--port-base", str(base - 1)),
            ("node", "--name", "n1", "--listen", f"127.0.0.1:{base}"),
            ("coordination", "--listen", f"127.0.0.1:{base}"),
        ):
            line = fails(capsys, 2, *arguments)
            assert f"127.0.0.1:{base} (in use)" in line
            assert "choose" in line


def test_a_data_file_that_is_no_click_log(capsys, tmp_path):
    file = tmp_path / "bad.tsv"
    file.write_text("1\t2\t3\n")
    assert "bad.tsv" in fails(capsys, 2, "demo", "--data", str(file))
    assert "bad.tsv:1:" in fails(capsys, 2, "demo", "--strict", "--data", str(file))


def test_nobody_answers(capsys):
    (port,) = free_ports(1)
    assert "ecstore up" in fails(capsys, 1, "status", "--connect", f"127.0.0.1:{port}")


def test_as_a_module_with_the_threads_of_linear_algebra_limited():
    code = (
        "import os, sys; from ecstore.cli import main; "
        "main(['--version']); print(os.environ['OPENBLAS_NUM_THREADS'], 'fastapi' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown.splitlines()[0].startswith("ecstore ")
    assert shown.splitlines()[1] == "1 False"


def test_json_reports_know_no_nan(tmp_path):
    from ecstore.cli.output import Output

    file = tmp_path / "report.json"
    Output(str(file)).report({"auc": float("nan"), "list": [1.5, float("inf")], 3: None})
    assert json.loads(file.read_text()) == {"auc": None, "list": [1.5, None], "3": None}
