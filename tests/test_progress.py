"""Signals: which ones stop a job, and that nothing can block the stop."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from model_cases import detections, model_of

from polyadic.experiments import photos
from polyadic.experiments.photos import Item, Question, predict_photos
from polyadic.progress import Interrupted, check, interruptible, request_stop

needs_hangup = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP here")


@needs_hangup
def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
            check()
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "others are handled"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@needs_hangup
def test_a_closed_terminal_stops_a_job_that_does_not_ignore_it() -> None:
    with interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(Interrupted):
            check()


def test_a_photo_that_cannot_be_read_blocks_no_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = threading.Event()
    monkeypatch.setattr(photos, "open_photo", lambda path: stalled.wait(60))  # a disk that does not answer
    items = [Item(f"{at}.png", tmp_path / f"{at}.png", detections(2)) for at in range(3)]
    start, before = time.monotonic(), set(threading.enumerate())  # other tests leave some behind
    with interruptible():
        timer = threading.Timer(0.1, request_stop)
        timer.start()
        with pytest.raises(Interrupted):
            next(predict_photos(model_of("evidence"), items, Question(), batch=1))
    assert time.monotonic() - start < 10
    timer.join()
    readers = set(threading.enumerate()) - before
    assert readers, "they wait for the disk"
    assert all(thread.daemon for thread in readers), "the interpreter would wait for them"
    stalled.set()
