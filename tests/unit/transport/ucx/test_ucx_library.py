"""Which UCX is opened and with which settings, without one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from barrage.errors import BarrageError, ConfigError, TransportUnavailableError
from barrage.transport.ucx import UcxSettings, library
from barrage.transport.ucx.declarations import describe
from barrage.transport.ucx.library import candidates, release_warnings
from barrage.transport.ucx.settings import (
    LIBRARY_VARIABLES,
    library_choice,
    library_environment,
)


def test_the_defaults_keep_to_this_host_and_open_no_memory() -> None:
    assert UcxSettings().entries() == {
        "TLS": "tcp",
        "NET_DEVICES": "lo",
        "CM_USE_ALL_DEVICES": "y",
        "TCP_PUT_ENABLE": "n",
        "TCP_RX_SEG_SIZE": "256k",
    }


def test_remote_writes_are_switched_on_by_their_own_switch_only() -> None:
    assert UcxSettings(rma=True).entries()["TCP_PUT_ENABLE"] == "n"
    entries = UcxSettings(put_zcopy=True).entries()
    assert entries["TCP_PUT_ENABLE"] == "y"
    assert entries["RNDV_SCHEME"] == "put_zcopy"


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ((1, 13, 1), "PUT_ENABLE"),
        ((1, 16, 0), "PUT_ENABLE"),
        ((1, 17, 0), "TCP_PUT_ENABLE"),
        ((1, 22, 0), "TCP_PUT_ENABLE"),
    ],
)
def test_remote_writes_are_switched_off_under_the_name_the_release_knows(
    version: tuple[int, int, int], name: str
) -> None:
    entries = UcxSettings().entries(version)
    assert entries[name] == "n"
    assert name.replace("PUT_ENABLE", "RX_SEG_SIZE") in entries


def test_releases_that_send_what_they_receive_send_what_peers_with_the_defaults_have_room_for() -> (
    None
):
    old, between = UcxSettings().entries((1, 13, 1)), UcxSettings().entries((1, 17, 0))
    assert (old["ZCOPY_THRESH"], old["TX_SEG_SIZE"]) == ("inf", "64k")
    assert (between["ZCOPY_THRESH"], between["TCP_TX_SEG_SIZE"]) == ("inf", "64k")
    assert "ZCOPY_THRESH" not in UcxSettings().entries((1, 22, 0))


def test_both_sides_agree_on_what_must_be_equal_and_nothing_else() -> None:
    ours = UcxSettings(devices="eth0", tls="tcp,cma", rma=True)
    assert ours.agreement() == UcxSettings().agreement()
    assert UcxSettings(all_devices=False).agreement() != ours.agreement()
    assert UcxSettings(put_zcopy=True).agreement() != ours.agreement()


@pytest.mark.parametrize("text", ["", " lo", "lo\0"])
def test_lists_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="devices"):
        UcxSettings(devices=text)
    with pytest.raises(ConfigError, match="tls"):
        UcxSettings(tls=text)


def test_the_environment_is_the_librarys_while_it_is_loaded_and_the_users_before_and_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environ = {"UCX_MEM_EVENTS": "y", "OTHER": "1"}
    monkeypatch.setattr(os, "environ", environ)
    with library_environment():
        assert environ == {**LIBRARY_VARIABLES, "UCX_MEM_EVENTS": "y", "OTHER": "1"}
        assert environ["UCX_HANDLE_ERRORS"] == "none"
        assert environ["UCX_DEBUG_SIGNO"] == "0"
    assert environ == {"UCX_MEM_EVENTS": "y", "OTHER": "1"}
    with contextlib.suppress(OSError), library_environment():
        raise OSError("cannot load library")
    assert environ == {"UCX_MEM_EVENTS": "y", "OTHER": "1"}


def test_two_threads_that_ask_at_once_get_one_library(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []

    def load(_: str | None) -> object:
        time.sleep(0.05)
        opened.append(object())
        return opened[-1]

    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "_load", load)
    monkeypatch.setattr(library, "_check_same", lambda *_: None)
    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(lambda _: library.load_library(), range(4)))
    assert got == opened * 4


def test_the_choice_is_an_order_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_wheel_path", lambda: "/site/libucp.so.0")
    assert candidates() == ["/site/libucp.so.0", "libucp.so.0"]
    assert candidates("wheel") == ["/site/libucp.so.0"]
    assert candidates("system") == ["libucp.so.0"]
    assert candidates("/opt/libucp.so") == ["/opt/libucp.so"]
    with pytest.raises(ConfigError, match="unknown UCX library 'other'"):
        candidates("other")
    monkeypatch.setattr(library, "_wheel_path", lambda: None)
    assert candidates() == ["libucp.so.0"]
    with pytest.raises(TransportUnavailableError, match="pip install 'barrage"):
        candidates("wheel")


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library_choice({"BARRAGE_UCX_LIBRARY": "system"}) == "system"
    assert library_choice({"BARRAGE_UCX_LIBRARY": ""}) is None
    monkeypatch.delenv("BARRAGE_UCX_LIBRARY", raising=False)
    assert library_choice() is None


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ((1, 13, 1), "malformed bytes"),
        ((1, 15, 0), "malformed bytes"),
        ((1, 16, 0), "when a peer dies"),
        ((1, 21, 0), "when a peer dies"),
        ((1, 20, 1), "loopback"),
        ((1, 22, 0), None),
    ],
)
def test_releases_with_known_faults_are_warned_of(
    version: tuple[int, int, int], words: str | None
) -> None:
    warnings = " ".join(release_warnings(version))
    assert (words in warnings) if words else not warnings
    assert not words or "use 1.22" in warnings


def test_statuses_are_told_in_words() -> None:
    assert describe(-25) == "connection reset by the peer (UCX -25)"
    assert describe(-15) == "error (UCX -15)"
    assert describe(-77) == "error (UCX -77)"


def script(text: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_is_loaded_until_somebody_asks() -> None:
    assert (
        script(
            "import sys, os, barrage, barrage.transport.ucx as ucx\n"
            "from barrage.transport.ucx.library import mapped_libraries\n"
            "ucx.UcxSettings()\n"
            "print('cffi' in sys.modules, mapped_libraries(), 'UCX_MEM_EVENTS' in os.environ)"
        )
        == f"False [] {'UCX_MEM_EVENTS' in os.environ}"
    )


LOADING = """
import sys
{before}
from barrage.errors import TransportUnavailableError
from barrage.transport.ucx import load_library
try:
    load_library()
except TransportUnavailableError as error:
    print(error)
"""


def test_what_is_missing_is_named_with_what_to_install() -> None:
    without_cffi = script(LOADING.format(before="sys.modules['cffi'] = None"))
    assert without_cffi.startswith("UCX needs cffi; install one with `pip install 'barrage[ucx]'`")
    pytest.importorskip("cffi")
    nowhere = script(LOADING.format(before=""), BARRAGE_UCX_LIBRARY="/no/such/libucp.so.0")
    assert nowhere.startswith("no UCX library: cannot load library '/no/such/libucp.so.0'")
    assert "pip install 'barrage[ucx]'" in nowhere


def test_a_second_ucx_in_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cffi")
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "mapped_libraries", lambda: ["/other/libucp.so.0"])
    with pytest.raises(TransportUnavailableError, match="another UCX is in this process"):
        library.load_library("/no/such/libucp.so.0")
    assert issubclass(TransportUnavailableError, BarrageError)
