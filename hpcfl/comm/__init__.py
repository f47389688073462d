"""Groups of ranks over MPI, Gloo or NCCL, and the exact mean over them."""
