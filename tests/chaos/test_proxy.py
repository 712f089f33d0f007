"""The drill's own instruments: the proxy before Postgres, the target, the clock shim."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import aiohttp
import psycopg
import pytest
from psycopg import AsyncConnection

from chaos.proxy import proxied
from chaos.rig import compile_shim
from support.processes import ROOT


async def _connect(address: str) -> "AsyncConnection[tuple[int]]":
    return await AsyncConnection.connect(address, autocommit=True, connect_timeout=5)


async def _asks(connection: "AsyncConnection[tuple[int]]", value: int) -> int:
    row = await (await connection.execute("SELECT %s::int", (value,))).fetchone()
    assert row is not None
    return row[0]


async def test_it_passes_everything_on_while_nothing_is_asked_of_it(dsn: str) -> None:
    async with proxied(dsn) as (_, address), await _connect(address) as connection:
        row = await (await connection.execute("SELECT repeat('x', 1000000)")).fetchone()
        assert row is not None
        assert len(str(row[0])) == 1_000_000


async def test_a_cut_resets_links_and_refuses_new_ones_until_it_is_healed(dsn: str) -> None:
    async with proxied(dsn) as (proxy, address):
        connection = await _connect(address)
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            await _asks(connection, 1)
        with pytest.raises(psycopg.OperationalError):
            await _connect(address)
        proxy.heal()
        async with await _connect(address) as again:
            assert await _asks(again, 2) == 2


async def test_a_half_open_link_is_silent_and_is_reset_when_it_heals(dsn: str) -> None:
    async with proxied(dsn) as (proxy, address):
        connection = await _connect(address)
        proxy.half_open()
        asking = asyncio.create_task(_asks(connection, 1))
        done, _ = await asyncio.wait({asking}, timeout=0.3)
        assert not done
        proxy.heal()
        with pytest.raises(psycopg.OperationalError):
            await asking


async def test_a_delay_holds_every_piece_back_and_loses_none(dsn: str) -> None:
    async with proxied(dsn) as (proxy, address), await _connect(address) as connection:
        proxy.delay(0.1)
        began = asyncio.get_running_loop().time()
        assert await _asks(connection, 7) == 7
        assert asyncio.get_running_loop().time() - began >= 0.2
        proxy.heal()


async def test_a_swallowed_answer_leaves_the_work_done_and_its_client_without_word(dsn: str) -> None:
    async with proxied(dsn) as (proxy, address), await AsyncConnection.connect(dsn, autocommit=True) as direct:
        await direct.execute("CREATE TABLE done (n int)")
        connection = await _connect(address)
        proxy.swallow_answer(b"COMMIT")
        with pytest.raises(psycopg.OperationalError):
            async with connection.transaction():
                await connection.execute("INSERT INTO done VALUES (1)")
        assert proxy.swallowed == 1
        row = await (await direct.execute("SELECT count(*) FROM done")).fetchone()
        assert row == (1,)


async def test_the_target_writes_each_request_down_whatever_becomes_of_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "receipts.jsonl"
    process = subprocess.Popen(  # noqa: ASYNC220 - it is read in a thread
        [sys.executable, "-m", "chaos.target", str(file), "0", "1"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}"},
    )
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(await asyncio.to_thread(process.stdout.readline))}/"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.5)) as session:
            answers = [await _call(session, url, kind) for kind in ("", "fail", "hang", "reset", "drop", "slow")]
    finally:
        process.kill()
        process.communicate()
    assert answers[:2] == ["200", "500"]
    assert answers[2:5] == ["TimeoutError", "ClientOSError", "ServerDisconnectedError"]
    receipts = [json.loads(line) for line in file.read_text().splitlines()]
    assert [receipt["answer"] for receipt in receipts] == ["200", "500", "hang", "reset", "drop", "200"]
    assert {receipt["schedule"] for receipt in receipts} == {"ä b"}


async def _call(session: aiohttp.ClientSession, url: str, kind: str) -> str:
    headers = {
        "webhook-id": f"id-{kind}",
        "Fleet-Schedule": "%C3%A4 b",
        "Fleet-Scheduled-At": "2026-01-01T00:00:00.000Z",
        "Fleet-Attempt": "1",
    }
    try:
        async with session.post(url, params={kind: "1"} if kind else {}, headers=headers) as response:
            return str(response.status)
    except (aiohttp.ClientError, TimeoutError) as error:
        return "TimeoutError" if isinstance(error, TimeoutError) else type(error).__name__


async def test_the_shim_shifts_the_time_of_day_and_leaves_the_monotonic_clock(tmp_path: Path) -> None:
    library = compile_shim(tmp_path)
    if library is None:
        pytest.skip("nothing here compiles C, so drills leave out wrong clocks")
    code = "import time, datetime as d; print(time.time(), d.datetime.now().timestamp(), time.monotonic())"

    def clocks(**env: str) -> list[float]:
        said = subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, check=True)
        return [float(word) for word in said.stdout.split()]

    true, shifted = clocks(), clocks(LD_PRELOAD=str(library), CLOCK_OFFSET="-7200")
    moved = [later - earlier for earlier, later in zip(true, shifted, strict=True)]
    assert -7200 <= moved[0] < -7000
    assert -7200 <= moved[1] < -7000
    assert 0 <= moved[2] < 200
