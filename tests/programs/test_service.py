"""The service: started twice, and killed inside a transaction and while an order is shipped."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ports import free_port
from tests.programs.outside import Outside
from tests.programs.running import TIMEOUT_S, Program, kill

TEA = {"number": 1, "item": "tea", "euros": 5}
PIANO = {"number": 2, "item": "piano", "euros": 5000}
CASTLE = {"number": 3, "item": "castle", "euros": 90_000_000}


class Shop:
    """The service, and somebody who calls it."""

    def __init__(self, program: Program) -> None:
        port = free_port()
        self._program, self._port = program, str(port)
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = self._program.start(self._port)
        self.wait(lambda: self.get("/orders") is not None)

    def stop(self) -> None:
        """Stop it as a service manager does."""
        assert self._process is not None
        self._process.terminate()
        printed, complaints = self._process.communicate(timeout=TIMEOUT_S)
        assert self._process.returncode in (0, -signal.SIGTERM), f"{printed}\n{complaints}"
        assert "Traceback" not in complaints

    def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        kill(self._process)

    def leave(self) -> None:
        """Call no more."""
        self._http.close()

    def get(self, path: str) -> Any:
        """What it answers; nothing if it does not."""
        assert self._process is not None
        assert self._process.poll() is None, self._process.communicate()
        try:
            answer = self._http.get(path)
        except httpx.ConnectError:
            return None
        assert answer.status_code < 500, answer.text
        return answer.json()

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Send something."""
        return self._http.post(path, json=body)

    def wait(self, until: Callable[[], bool]) -> None:
        """Until something is so."""
        deadline = time.monotonic() + TIMEOUT_S
        while not until():
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.02)

    def result(self, number: int) -> str:
        """How an order ended, as soon as it has."""
        self.wait(lambda: "result" in self.get(f"/orders/{number}"))
        return str(self.get(f"/orders/{number}")["result"])


@pytest.fixture
def outside() -> Outside:
    return Outside(
        {
            # Not empty: half of an empty answer would be all of it.
            "credit": lambda call: (402, "poor") if call.path.endswith("/3") else (200, "good"),
            "charge": lambda call: (200, f"{call.body['euros']} euros paid"),
            "ship": lambda call: (200, f"{call.body['item']} shipped"),
        }
    )


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, outside: Outside, tmp_path: Path) -> Iterator[Shop]:
    store = {"STORE_URL": request.getfixturevalue("postgres_dsn")} if request.param == "postgres" else {}
    with outside.serving() as address, Program("service.py", tmp_path, SERVICES_URL=address, **store) as program:
        found = Shop(program)
        yield found
        found.leave()


def test_it_is_started_twice(shop: Shop, outside: Outside) -> None:
    results = []
    for _ in range(2):
        shop.start()
        taken = shop.post("/orders", TEA)
        assert taken.status_code == 202
        assert shop.post("/orders", TEA).json() == taken.json()
        assert shop.post("/orders", CASTLE).status_code == 402
        assert shop.post("/orders", PIANO).status_code == 202
        if not results:
            shop.wait(lambda: shop.get("/orders/2")["status"] == "suspended")
            assert shop.post("/orders/2/answer", {"yes": True}).json() == {"answered": 1}
        results.append([taken.json(), shop.result(1), shop.result(2), shop.get("/orders"), shop.get("/orders/3")])
        shop.stop()
    assert results[0][1:4] == ["5 euros paid, tea shipped", "5000 euros paid, piano shipped", [1, 2]]
    assert results[0] == results[1]
    assert {path: outside.count(path) for path in ("/charge", "/ship")} == {"/charge": 2, "/ship": 2}


def test_it_goes_on_when_it_was_killed(shop: Shop, outside: Outside) -> None:
    shop.start()
    outside.get_stuck(lambda call: call.path == "/credit/1")
    with ThreadPoolExecutor(1) as caller:
        order = caller.submit(shop.post, "/orders", TEA)
        outside.wait_until_stuck()  # the order and its run are written, and not committed
        shop.kill()
        with pytest.raises(httpx.TransportError):
            order.result()

    shop.start()
    assert shop.get("/orders") == []
    outside.get_stuck(lambda call: call.path == "/ship")
    assert shop.post("/orders", PIANO).status_code == 202
    assert shop.post("/orders/2/answer", {"yes": True}).json() == {"answered": 1}
    outside.wait_until_stuck()  # charged, and who knows whether it is shipped
    shop.kill()

    outside.recover()
    shop.start()
    assert shop.result(2) == "5000 euros paid, piano shipped"
    assert shop.post("/orders", TEA).status_code == 202  # nothing of the first time is in the way
    assert shop.result(1) == "5 euros paid, tea shipped"
    shop.stop()
    assert [call.body["order"] for call in outside.calls if call.path == "/charge"] == [2, 1]
    shipped = [(call.body["order"], call.key) for call in outside.calls if call.path == "/ship"]
    assert [order for order, _ in shipped] == [2, 2, 1]
    assert len(set(shipped)) == 2
