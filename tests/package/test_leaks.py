"""A fixture fails each test that leaves something behind, and ends a child that hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_leaking_test_fails_and_hanging_child_is_ended_with_a_traceback(tmp_path: Path) -> None:
    file = tmp_path / "test_wrong.py"
    file.write_text(
        "import os, signal, time\n\n"
        "def hang():\n    time.sleep(60)\n\n"
        "def test_leak():\n    global pipe\n    pipe = os.pipe()\n\n"
        "def test_hang():\n    pid = os.fork()\n    if not pid:\n        hang()\n        os._exit(0)\n"
        "    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGALRM\n"
    )
    # only the child should be ended
    settings = ["-o", "faulthandler_timeout=3", "-o", "faulthandler_exit_on_timeout=false"]
    options = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *settings]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "LeakError: left behind: file descriptor" in done.stdout
    assert "2 passed" in done.stdout  # Python 3.12 and later may warn about the fork
    assert "1 error" in done.stdout
    assert 'test_wrong.py", line 4 in hang' in done.stderr
