"""Every example runs as its page says, and prints what stands there.

``./dev run python -m tests.examples.test_programs`` writes the outputs anew.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGE = EXAMPLES / "README.md"
#: What the examples share.
SHARED = {"model.py", "scratch.py"}
SECTION = re.compile(r"^## .*?\[(?P<file>[\w/]+\.py)\].*?^```text\n(?P<output>.*?)^```$", re.DOTALL | re.MULTILINE)
TIMEOUT_S = 60

#: What differs from run to run.
CHANGING = (
    (re.compile(r"\{fp:\d+\}:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<run>"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d)?)?"), "<date>"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s)\b"), "<time>"),
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
)


def sections() -> dict[str, str]:
    """What each example prints, as its page says."""
    text = PAGE.read_text()
    # One section at a time, so that a section without an output does not borrow its neighbour's.
    parts = re.split(r"(?=^## )", text, flags=re.MULTILINE)
    found = [SECTION.search(part) for part in parts if part.startswith("## ")]
    return {each["file"]: each["output"] for each in found if each is not None}


def programs() -> list[str]:
    """Every example there is."""
    files = [path.name for path in EXAMPLES.glob("*.py") if path.name not in SHARED]
    folders = [f"{path.parent.name}/main.py" for path in EXAMPLES.glob("*/main.py")]
    return sorted(files + folders)


def run(name: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run an example as a newcomer would, from elsewhere."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("FF_", "OPENROUTER_"))}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder,
        env={**variables, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", **more},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def normalised(text: str) -> str:
    """The text without what differs from run to run."""
    for pattern, name in CHANGING:
        text = pattern.sub(name, text)
    return text


@pytest.mark.parametrize("name", programs())
def test_an_example_prints_what_its_page_says(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert normalised(done.stdout) == normalised(sections()[name])
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_every_example_is_on_the_page() -> None:
    assert sorted(sections()) == programs()


def test_another_store(tmp_path: Path) -> None:
    done = run("hello.py", tmp_path, FF_URL=f"sqlite:///{tmp_path}/runs.db")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs.db").exists()


@pytest.mark.parametrize("name", programs())
def test_an_example_on_postgres(name: str, tmp_path: Path, prepared_postgres_dsn: str) -> None:
    done = run(name, tmp_path, FF_URL=prepared_postgres_dsn)
    assert done.returncode == 0, done.stderr
    assert normalised(done.stdout) == normalised(sections()[name])


#: One of each kind: questions and waits, output as it comes, a flow, budgets.
ON_VALKEY = ("deploy_approval.py", "llm_race.py", "media_pipeline.py", "token_budget.py")


@pytest.mark.parametrize("name", ON_VALKEY)
def test_an_example_on_valkey(name: str, tmp_path: Path, valkey_url: str) -> None:
    done = run(name, tmp_path, FF_URL=valkey_url)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert normalised(done.stdout) == normalised(sections()[name])


class Provider(BaseHTTPRequestHandler):
    """A language model that says the same to everybody, as providers say it."""

    said: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.said.append({"path": self.path, "key": self.headers["Authorization"], **asked})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b": a comment\n\n")
        for token in ("a ", "real ", "answer"):
            data = {"choices": [{"delta": {"content": token}}]}
            self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def test_a_real_model(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/v1"
        done = run("llm_race.py", tmp_path, OPENROUTER_API_KEY="secret", OPENROUTER_URL=address, OPENROUTER_MODEL="m")
        server.shutdown()
        thread.join()
    assert done.returncode == 0, done.stderr
    assert "the race gives: a real answer\n" in done.stdout
    first = Provider.said[0]
    assert (first["path"], first["key"], first["model"], first["stream"]) == (
        "/v1/chat/completions",
        "Bearer secret",
        "m",
        True,
    )


def write_page() -> None:
    """Write the outputs anew."""

    def anew(part: str) -> str:
        found = SECTION.search(part)
        if found is None or (len(sys.argv) > 1 and found["file"] not in sys.argv[1:]):
            return part
        with tempfile.TemporaryDirectory() as folder:
            done = run(found["file"], Path(folder))
        if done.returncode != 0 or done.stderr:
            sys.exit(f"{found['file']}: {done.stderr}")
        return part[: found.start("output")] + done.stdout + part[found.end("output") :]

    PAGE.write_text("".join(anew(part) for part in re.split(r"(?=^## )", PAGE.read_text(), flags=re.MULTILINE)))


if __name__ == "__main__":
    write_page()
