"""A rank of hpcfl that NCCL takes for one on a host of its own, so that two may share a GPU.

    python -m torch.distributed.run ... nccl_rank.py COMMAND ...

NCCL refuses two ranks on one GPU only if their hosts are the same, and NCCL_HOSTID names the host.
PLANT="hang 3" lets rank 1 stop in its work of round 3, "kill 3" ends it there.
"""

import os
import signal
import sys
import time

rank = int(os.environ["RANK"])
os.environ["NCCL_HOSTID"] = f"host-of-rank-{rank}"
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")

from hpcfl.__main__ import main  # noqa: E402

if rank == 1 and "PLANT" in os.environ:
    from hpcfl.comm.watched import WatchedComm

    fault, number = os.environ["PLANT"].split()
    allreduce_max = WatchedComm.allreduce_max

    def faulty(self, values):
        if self.progress.round == int(number):
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1000)
        return allreduce_max(self, values)

    WatchedComm.allreduce_max = faulty

if __name__ == "__main__":
    sys.exit(main())
