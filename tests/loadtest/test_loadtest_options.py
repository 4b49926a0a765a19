"""What is wrong on a command line is said at once, in a sentence; and what runs beside the loop ends with it."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from pathlib import Path

import pytest

from loadtest import __main__ as commands
from loadtest import chaos, crowd, load_options, own_thread, scenario
from loadtest.chaos_trouble import FAULTS, KINDS, Trouble
from loadtest.light_socket import dial
from loadtest.scenario import Scenario
from voice.errors import BadRequest, EngineFailed
from voice.testing import run_virtual

GONE_PID = "4194305"
"""Above the most that Linux gives to a process."""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("framework --sessions 0", "0 is not 1 to"),
        ("framework --sessions -1", "-1 is not 1 to"),
        ("framework --seconds nan", "nan is not above 0"),
        ("framework --runs 0", "0 is not 1 to"),
        ("run --in-process --seconds inf", "inf is not above 0"),
        ("run --in-process --sessions many", "many is no whole number"),
        ("run --in-process --html /no/such/folder/a.html", "there is no folder /no/such/folder"),
        ("soak --json /", "/ is a folder"),
        ("profile --out /no/such/folder/p.json", "there is no folder"),
        ("simulate --profile p --sessions 1 --seconds nan", "nan is not above 0"),
        ("chaos --seconds -3", "-3 is not above 0"),
        ("chaos --rate nan", "nan is not 0 to 1"),
        ("chaos --rate 5", "5 is not 0 to 1"),
        ("chaos --leave-out hang foo", "there is no fault 'foo'; there are engine"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["loadtest", *line.split()])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --url http://127.0.0.1:99999", "is not the address of a server: Port out of range"),
        ("run --url ws://127.0.0.1:abc", "is not the address of a server"),
        ("run --url ws://[::1", "is not the address of a server"),
        (f"run --url ws://127.0.0.1:9 --pid {GONE_PID}", f"the process {GONE_PID} can't be watched"),
        ("knee --in-process --from 9 --to 3", "--from 9 is more than --to 3"),
    ],
)
def test_what_can_not_be_run_is_a_sentence_at_once(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["loadtest", *line.split()])
    assert commands.main() == 1
    assert said in capsys.readouterr().err


def test_a_stopped_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def stopped(_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(load_options, "run", stopped)
    monkeypatch.setattr("sys.argv", ["loadtest", "soak"])
    assert commands.main() == commands.STOPPED
    assert "stopped" in capsys.readouterr().err


# ---------------------------------------------------------------- work beside the loop


def test_work_in_its_own_thread_gives_what_it_returns_or_raises() -> None:
    assert asyncio.run(own_thread.in_own_thread(divmod, 7, 2)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(own_thread.in_own_thread(divmod, 7, 0))


def test_a_loop_ends_while_its_work_goes_on() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait()
        ended.set()

    async def given_up() -> None:
        async with asyncio.timeout(0.01):
            await own_thread.in_own_thread(work)

    with pytest.raises(TimeoutError):
        asyncio.run(given_up())
    assert not ended.is_set()
    go_on.set()  # what it posts now finds a closed loop
    assert ended.wait(10.0)


# ---------------------------------------------------------------- faults that are left out


def test_all_that_is_asked_for_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()

    def wants(_: Trouble, kind: str) -> bool:
        asked.add(kind)
        return False

    monkeypatch.setattr(Trouble, "wants", wants)
    chaos.play("0:0", chaos.Options(rate=0.3, leave_out=FAULTS, callers=2, act_s=20.0))
    assert len(asked) > 8 and asked - {"line slow"} <= set(KINDS)  # which stands in for the others


def test_nothing_strikes_when_all_is_left_out() -> None:
    trouble = Trouble(random.Random(1), 1.0, KINDS)
    run_virtual(trouble.pass_time(0.1, "ears", "call"))
    assert not trouble.happened


def test_rounds_without_a_turn_are_not_played_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "play", lambda seed, _: chaos.Round(seed))
    with pytest.raises(BadRequest, match="rounds had no turn"):
        chaos.run(10, "0")


# ---------------------------------------------------------------- the server, and what it sends


def test_a_process_that_has_ended_is_watched_no_more() -> None:
    assert crowd._seen(os.getpid()) is not None
    assert crowd._seen(int(GONE_PID)) is None


def test_what_is_no_http_is_told() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")

    async def main() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        server = await asyncio.start_server(greet, sock=listening)
        async with server:
            await dial(f"ws://127.0.0.1:{listening.getsockname()[1]}", None, lambda *_: None)

    with pytest.raises(EngineFailed, match="what came is no HTTP: did not receive a valid HTTP response"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"ramp_s": 1' + "0" * 400 + "}", "ramp_s must be below"),
        ("b.toml", "ramp_s = 0x1" + "0" * 6000, "ramp_s must be below"),
        ("c.json", "[" * 100_000, "is nested too deeply"),
        ("d.toml", "[session]\nsince = 2024-01-01", "session can't be sent as JSON"),
        ("e.toml", "[session]\nspeed = nan", "session can't be sent as JSON"),
        ("f.toml", "[hang_up]\nwhen = 0x1" + "0" * 6000, "holds something of the wrong kind"),
    ],
)
def test_odd_scenarios_are_refused_in_a_sentence(name: str, text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadRequest, match=f"{name}.*{said}"):
        scenario.load(path)


def test_a_session_that_is_no_json_is_refused() -> None:
    with pytest.raises(BadRequest, match="session can't be sent"):
        Scenario(session={"a": object()})
