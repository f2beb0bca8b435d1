"""`ecstore bench codec`: cases, figures that agree with each other, and plots. Peers that are missing are skipped."""

import json
import subprocess
import sys

import numpy as np
import pytest

from ecstore import codec
from ecstore.bench import codec as bench_codec
from ecstore.bench import codec_peers, plot_codec, plots
from ecstore.bench.codec import CodecOptions
from ecstore.bench.report import Record
from ecstore.codec import Code, reference
from ecstore.errors import CodeError, ConfigError

FIELDS = {"case", "metric", "value", "unit", "peer", "peer_value", "ratio", "spread"}


def found(kind):
    """A peer, or the reason why it is not here."""
    try:
        return kind(), ""
    except ImportError as error:
        return None, str(error)


ISA_L, NO_ISA_L = found(codec_peers.IsaL)
ZFEC, NO_ZFEC = found(codec_peers.Zfec)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plots")
    command = [sys.executable, "-m", "ecstore", "bench", "codec", "--quick", "--json", "-", "--plot", str(folder)]
    command += ["--codes", "rs(2,1),rs(4,2)", "--sizes", "16", "--repetitions", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr, folder


def test_every_case_beside_every_peer_that_is_here(ran):
    report, shown, _folder = ran
    peers = ["galois", *(["isa-l"] if ISA_L else []), *(["zfec"] if ZFEC else [])]
    cases = [f"{what}/rs(2,1)/16KiB" for what in ("encode", "decode1")]
    cases += [f"{what}/rs(4,2)/16KiB" for what in ("encode", "decode1", "decodem")]
    expected = {(case, peer) for case in cases for peer in peers}
    expected |= {("delta/rs(4,2)/11000x264B", "numpy"), ("threads/rs(4,2)/4MiB", "one thread")}
    assert {(record["case"], record["peer"]) for record in report["records"]} == expected
    assert len(report["records"]) == len(expected)
    for record in report["records"]:
        assert record.keys() == FIELDS
        assert (record["metric"], record["unit"]) == ("throughput", "GB/s")
        assert record["value"] > 0
        assert record["ratio"] == pytest.approx(record["value"] / record["peer_value"])
        assert record["spread"] >= 0
    assert report["machine"]["galois"]
    assert "ratio" in shown
    for name, reason in (("isa-l", NO_ISA_L), ("zfec", NO_ZFEC)):
        assert (f"{reason}: left out" in shown) == bool(reason), name


def test_plots_are_written_twice(ran):
    _report, _shown, folder = ran
    names = {"codec-encode-16KiB", "codec-decode1-16KiB", "codec-decodem-16KiB", "codec-delta"}
    assert {path.name for path in folder.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    text = (folder / "codec-encode-16KiB.svg").read_text()
    assert text.startswith("<?xml")


@pytest.mark.skipif(ISA_L is None, reason=NO_ISA_L)
def test_isa_l_computes_the_same_bytes():
    code, random = Code.parse("rs(5,3)"), np.random.default_rng(1)
    data = [random.integers(0, 256, (7, 24), dtype=np.uint8) for _ in range(5)]
    out = [np.zeros((7, 24), np.uint8) for _ in range(3)]
    ISA_L.matrix(code.coefficients, data, out)()
    for actual, expected in zip(out, reference.encode(code, data), strict=True):
        assert np.array_equal(actual, expected)
    shards = data + out
    matrix, left = codec_peers.decode_sources(code, [1, 4])
    lost = [np.zeros((7, 24), np.uint8) for _ in range(2)]
    ISA_L.matrix(matrix, [shards[index] for index in left], lost)()
    assert np.array_equal(lost[0], data[1])
    assert np.array_equal(lost[1], data[4])


@pytest.mark.skipif(ZFEC is None, reason=NO_ZFEC)
@pytest.mark.parametrize("lost", [[0], [1], [0, 1], [1, 3]])
def test_zfec_decodes_what_was_lost(lost):
    code, random = Code.parse("rs(4,2)"), np.random.default_rng(1)
    data = [random.integers(0, 256, (7, 24), dtype=np.uint8) for _ in range(4)]
    decoded = ZFEC.decode(code, lost, data)()
    assert [bytes(rows) for rows in decoded] == [rows.tobytes() for rows in data]


def test_wrong_bytes_of_ours_end_the_run(monkeypatch):
    """A figure of a codec that computes something else would be worth nothing."""
    real = codec.encode

    def wrong(*arguments, **named):
        made = real(*arguments, **named)
        made[0][0, 0] ^= 1
        return made

    monkeypatch.setattr(bench_codec.codec, "encode", wrong)
    with pytest.raises(Exception, match="other bytes"):
        bench_codec.run(CodecOptions(codes=("rs(2,1)",), shard_bytes=(4096,), repetitions=1))


@pytest.mark.parametrize(
    "bad",
    [{"repetitions": 0}, {"shard_bytes": (100,)}, {"shard_bytes": (1 << 30,)}, {"codes": ("rs(2,3)",)},
     {"codes": ("none",)}, {"codes": ("rs(4)",)}],
)  # fmt: skip
def test_impossible_options_are_refused(bad):
    with pytest.raises(CodeError if bad.get("codes") == ("rs(4)",) else ConfigError, match=r"\d"):
        CodecOptions(**bad)


def test_a_plot_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").touch()
    record = Record("encode/rs(2,1)/1MiB", "throughput", 2.0, "GB/s", "isa-l", 1.0, 2.0, 0.1)
    with pytest.raises(ConfigError, match="--plot"):
        plot_codec.plot([record], tmp_path / "file")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"ecstore\[bench\]"):
        plots.figure("", "", "")
