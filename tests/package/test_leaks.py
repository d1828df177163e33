"""A fixture fails each test that leaves a thread, a process or a file behind."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.leaks import LeakError, no_leaks

SHORT_S = 0.01  # how long to wait for leaks that do not end
WAIT_S = 20.0


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


@pytest.mark.slow
def test_leaks_are_named(tmp_path: Path) -> None:
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, name="forgotten")
    with pytest.raises(LeakError, match="left behind: thread 'forgotten'"), no_leaks(SHORT_S):
        thread.start()
    may_end.set()
    thread.join()
    processes = []
    with pytest.raises(LeakError, match=r"process \d+ \(ended, not waited for\)"), no_leaks():
        processes.append(subprocess.Popen(["true"]))
    assert processes[0].wait() == 0
    with pytest.raises(LeakError, match=r"file descriptor \d+ \(.*/forgotten\)"), no_leaks(SHORT_S):
        file = (tmp_path / "forgotten").open("w")
    with no_leaks(SHORT_S):  # deleting an open file is no leak
        (tmp_path / "forgotten").unlink()
    file.close()
