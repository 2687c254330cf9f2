"""Many processes at once, and processes that die at any moment: nothing is lost, nothing is found half."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.patience import within

from minrnn_gen.build.store import Store, digest

PROCESSES = 16
# Several files, so that there are many moments between the first byte and the rename.
FILE_BYTES = 20_000


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


COMPETE = """
import sys
from pathlib import Path
from minrnn_gen.build.store import Store, digest

store, name = Store(Path(sys.argv[1])), sys.argv[2]
sys.stdin.readline()
for number in range(20):
    key = digest(str(number))
    put = store.put(key, {"a": name.encode() * 1000, "b": name.encode()}, {"by": name})
    found = store.find(key)
    assert found == put and put.folder is not None, (number, put.manifest, found)
    store.put_request(key, {"by": name})
    assert store.find_request(key) is not None
"""


@pytest.mark.matrix_full
def test_the_same_keys_put_by_many_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPETE, str(tmp_path)]
    processes = [
        subprocess.Popen([*command, f"{number:02}"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in range(PROCESSES)
    ]
    time.sleep(0.5)  # let them all come to the line before the start
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, complaints = process.communicate(timeout=within(60))
        assert (process.returncode, complaints) == (0, "")
    entries = list(Store(tmp_path).entries())
    assert len(entries) == 20
    for entry in entries:
        name = entry.manifest["by"].encode()
        assert entry.files == {"a": name * 1000, "b": name}, "an entry is one process's work, whole"


MAKE_ONCE = """
import sys, time
from pathlib import Path
from minrnn_gen.build.store import Store, digest

store, key = Store(Path(sys.argv[1])), digest("the kernel")
with store.lock(key):
    if store.find(key) is None:
        time.sleep(0.05)
        print("made")
        store.put(key, {"a": b"made"}, {})
assert store.find(key).files == {"a": b"made"}
"""


def test_under_its_lock_a_thing_is_made_once(tmp_path: Path) -> None:
    processes = [start(MAKE_ONCE, tmp_path) for _ in range(PROCESSES)]
    answers = [process.communicate(timeout=within(60)) for process in processes]
    assert "".join(output + complaints for output, complaints in answers) == "made\n"


PUT_FOR_EVER = f"""
import itertools, sys
from pathlib import Path
from minrnn_gen.build.store import Store, digest

store = Store(Path(sys.argv[1]))
for number in itertools.count(int(sys.argv[2])):
    key = digest(str(number))
    files = {{name: name.encode() * {FILE_BYTES} for name in "abcd"}}
    with store.lock(key):
        assert store.put(key, files, {{"number": number}}).folder
        store.put_request(digest("the latest"), {{"number": number}})
    print(number, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_killing_at_any_moment_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path)
    chance = random.Random(1)
    announced: list[int] = []
    for round_number in range(12):
        with start(PUT_FOR_EVER, tmp_path, 10_000 * round_number) as process:
            assert process.stdout is not None and process.stderr is not None
            announced.append(int(process.stdout.readline()))
            # One put takes some 2 ms: the moments of death spread over ten of them.
            time.sleep(chance.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
            # Not communicate(), which leaves out what readline() has read ahead.
            output, complaints = process.stdout.read(), process.stderr.read()
        assert complaints == ""
        announced += map(int, output.split())

        latest = store.find_request(digest("the latest"))
        assert latest is not None
        assert latest["number"] >= announced[-1]
    for number in announced:
        entry = store.find(digest(str(number)))
        assert entry is not None
        assert entry.manifest == {"number": number}
        assert entry.files == {name: name.encode() * FILE_BYTES for name in "abcd"}
    # Nothing else is visible but whole entries, at most one per death beyond what was announced.
    assert len(announced) <= len(list(store.entries())) <= len(announced) + 12
    assert caplog.records == []
    for leftover in (tmp_path / "store-1" / "temporary").iterdir():
        os.utime(leftover, (0, 0))
    store.put(digest("afterwards"), {}, {})
    assert list((tmp_path / "store-1" / "temporary").iterdir()) == []


FILL_THE_DISK = """
import resource, sys
from pathlib import Path
from minrnn_gen.build.store import Store, digest

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
store, key = Store(Path(sys.argv[1])), digest("large")
for _ in range(3):
    entry = store.put(key, {"large": bytes(5000)}, {"a": 1})
    assert (entry.folder, entry.files, entry.manifest) == (None, {"large": bytes(5000)}, {"a": 1})
assert store.find(key) is None
assert store.put(digest("small"), {"small": bytes(100)}, {}).folder
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no limit on file sizes")
def test_a_file_that_cannot_be_written_whole_leaves_nothing_and_is_said_once(tmp_path: Path) -> None:
    process = start(FILL_THE_DISK, tmp_path)
    output, complaints = process.communicate(timeout=within(60))
    assert (process.returncode, output) == (0, "")
    assert complaints.count("\n") == complaints.count("the cache cannot be written") == 1
    assert [entry.key for entry in Store(tmp_path).entries()] == [digest("small")]


def test_clearing_while_others_work_disturbs_nobody(tmp_path: Path) -> None:
    store = Store(tmp_path)
    process = start(PUT_FOR_EVER, tmp_path, 0)
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(50):
        store.clear()
        list(store.entries())
    assert process.poll() is None, "still working"
    process.kill()
    _, complaints = process.communicate(timeout=within(60))
    assert complaints == ""
