"""Groups of ranks: one process, MPI, Gloo or NCCL, and the exact sum over them."""
