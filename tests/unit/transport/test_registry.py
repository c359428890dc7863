"""Backends by name: of this package, of others by their entry points, and of the program."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from barrage.client.connection.address import parse_address
from barrage.errors import ConfigError, TransportUnavailableError
from barrage.transport import entry_points
from barrage.transport.inproc.inproc_transport import InprocTransport
from barrage.transport.registry import BODIES, TRANSPORTS, Registry, body_way
from barrage.transport.ucx.plugin import UcxTransport
from barrage.wire.dissociated.ways import BodyWay, can_be_way

SCHEMES = "grpc grpc+tcp grpcs grpc+tls dh dh+plain dhs unix grpc+unix inproc"


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with entry points that is installed."""
    (tmp_path / "parcels.py").write_text(
        "class Parcels:\n    kind = 'parcel'\n\nPOST = Parcels()\n"
    )
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    info = tmp_path / "parcels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parcels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[test.backends]\npost = parcels:POST\nfast = broken:FAST [air,sea]\nlost = parcels:LOST\n"
        "ours = parcels:POST\nNo Name = parcels:POST\nsunk = sunken:SHIP\nmute = ???\n"
    )
    (tmp_path / "sunken.py").write_text("raise OSError('libship.so: no such file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    for name in ("parcels", "broken"):
        sys.modules.pop(name, None)


def backends() -> Registry[object]:
    place = "barrage.transport.inproc.inproc_transport:INPROC"
    return Registry("test.backends", "carrier", {"ours": place})


def test_what_an_entry_point_names_is_loaded_when_it_is_asked_for(plug_ins: Path) -> None:
    found = backends()
    assert found.names() == ("ours", "post", "fast", "lost", "sunk", "mute")
    assert "post" in found
    assert "parcels" not in sys.modules
    assert found.find("post").kind == "parcel"
    assert found.find("post") is found.find("post")
    assert isinstance(found.find("ours"), InprocTransport)


def test_an_unknown_name_is_told_the_known_ones(plug_ins: Path) -> None:
    with pytest.raises(
        ConfigError, match="no carrier 'x'; there are ours, post, fast, lost, sunk, mute"
    ):
        backends().find("x")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fast", r"no_such_module.*pip install 'parcels\[air,sea\]'"),
        ("lost", "LOST.*pip install parcels"),
        ("sunk", r"sunken:SHIP: OSError: libship\.so"),
        ("mute", r"\?\?\?.*pip install parcels"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_says_what_to_install(
    plug_ins: Path, name: str, words: str
) -> None:
    found = backends()
    for _ in range(2):
        with pytest.raises(TransportUnavailableError, match=words):
            found.find(name)


def test_a_plug_in_that_is_something_else_is_refused(plug_ins: Path) -> None:
    found: Registry[object] = Registry("test.backends", "carrier", {}, needs=("kind", "carry"))
    with pytest.raises(TransportUnavailableError, match="POST is no carrier: it has no carry"):
        found.find("post")


def test_of_two_with_one_name_the_first_on_the_path_counts_and_never_for_ours(
    plug_ins: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = tmp_path_factory.mktemp("later")
    info = later / "thieves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thieves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[test.backends]\npost = thieves:X\n[barrage.bodies]\nucx = thieves:X\norder = thieves:X\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(later)])
    monkeypatch.setattr(entry_points, "_CHECKOUT", later)
    assert entry_points.entry_points("test.backends")["post"].module == "parcels"
    assert entry_points.entry_points("barrage.bodies")["ucx"].module != "thieves"
    bodies: Registry[object] = Registry("barrage.bodies", "way", {}, can_be=can_be_way)
    assert "order" not in bodies.names()


def test_a_program_registers_its_own() -> None:
    found = backends()
    mine = object()
    found.register("mine", mine)
    assert found.find("mine") is mine
    assert found.names() == ("ours", "mine")
    for name, words in (("mine", "already"), ("ours", "already"), ("A b", "cannot be the name")):
        with pytest.raises(ConfigError, match=words):
            found.register(name, object())
    for name in ("mine", "mine", "ours"):
        found.unregister(name)
    assert found.names() == ("ours",)
    with pytest.raises(ConfigError):
        found.find("mine")


def test_the_plug_in_of_this_package_is_found_by_name() -> None:
    assert isinstance(BODIES.find("ucx"), UcxTransport)
    assert BODIES.names()[:2] == ("shm", "ucx")


def test_a_checkout_whose_metadata_is_older_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_points, "_CHECKOUT", tmp_path)
    assert backends().names() == ("ours",)
    text = '[project]\nname = "%s"\n[project.entry-points."test.backends"]\nnew = "os:path [ucx]"\n'
    (tmp_path / "pyproject.toml").write_text(text % "other")
    assert backends().names() == ("ours",)
    (tmp_path / "pyproject.toml").write_text(text % "barrage")
    found = backends()
    assert found.names() == ("ours", "new")
    assert found.find("new") is sys.modules["os.path"]
    (tmp_path / "pyproject.toml").write_text((text % "barrage").replace("os:path", "os:gone"))
    with pytest.raises(TransportUnavailableError, match=r"pip install 'barrage\[ucx\]'"):
        backends().find("new")


def test_clients_and_servers_may_import_no_transport_that_is_found_here() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    seam = next(each for each in contracts if "speak to the seam" in each["name"])
    for place in TRANSPORTS.built_in.values():
        assert place.partition(":")[0] in seam["forbidden_modules"]


def test_schemes() -> None:
    assert set(TRANSPORTS.built_in) >= set(SCHEMES.split())
    with pytest.raises(ConfigError, match=r"one of grpc://, .*unix://, .*inproc://"):
        parse_address("http://h:1")
    address = parse_address("unix:///run/b")
    assert (address.target, address.flight_uri) == ("unix:///run/b", "grpc+unix:///run/b")
    assert parse_address("dhs://h:1").flight_uri == "grpc+tls://h:1"
    address = parse_address("unix:///run/a%20b?ü")
    assert (address.target, address.flight_uri) == ("unix:///run/a%2520b%3F%C3%BC", None)
    for wrong in ("unix:///run/a,b", "unix:///run/a\0b", "grpc://[::1"):
        with pytest.raises(ConfigError):
            parse_address(wrong)
    assert parse_address("inproc://n").flight_uri is None
    assert parse_address("GRPC://h:1") == parse_address("h:1")


def test_ways_are_one_of_each() -> None:
    assert body_way("nobody") is None
    assert body_way("inline") is BodyWay.INLINE
    assert body_way("ucx") is BodyWay.UCX
    assert list(BodyWay) == [BodyWay.INLINE, BodyWay.SHM, BodyWay.UCX]
    made = BodyWay.named("of-a-test")
    assert made is BodyWay.named("of-a-test") is BodyWay("of-a-test")
    assert (made.value, made.name, made in BodyWay.known()) == ("of-a-test", "OF-A-TEST", True)
    assert made not in list(BodyWay)
    for name in ("", "auto", "order", "a b", "Ä"):
        with pytest.raises(ConfigError, match="cannot be the name"):
            BodyWay.named(name)
