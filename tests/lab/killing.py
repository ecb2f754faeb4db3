"""`whereness compare` that is killed in the midst of a write; its first argument says which.

A script of its own: worker processes import it again, so they are changed as well.
"""

import os
import signal
import sys
from pathlib import Path

from whereness.lab import checkpoint, files, store

POINT = os.environ["POINT"]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os._exit(1)  # a worker that has killed its command


def half_a_checkpoint(tensors, name):
    Path(name).write_bytes(b"half")
    kill(os.getppid())


def before_a_checkpoint_is_moved(tensors, name):
    save_file(tensors, name)
    kill(os.getppid())


def in_a_transaction(self, run, result):
    with self._transaction() as connection:
        connection.execute("update runs set status = 'done', result = 'half'")
        kill(os.getpid())


def after_a_transaction(self, run, result):
    finish(self, run, result)
    kill(os.getpid())


def before_a_claim_is_kept(self):
    with self._transaction() as connection:
        connection.execute("update runs set status = 'claimed', owner = ?", (self.owner,))
        kill(os.getpid())


def before_the_summary_is_moved(handle):
    kill(os.getpid())


save_file, finish = checkpoint.save_file, store.Store.finish
if POINT.endswith(("checkpoint", "checkpoint_is_moved")):
    checkpoint.save_file = globals()[POINT]
elif POINT.endswith("transaction"):
    store.Store.finish = globals()[POINT]
elif POINT == "before_a_claim_is_kept":
    store.Store.claim = before_a_claim_is_kept
elif POINT == "before_the_summary_is_moved":
    files.os.fsync = before_the_summary_is_moved
else:
    raise ValueError(POINT)

if __name__ == "__main__":
    from whereness.cli import main

    sys.exit(main(sys.argv[1:]))
