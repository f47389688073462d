#!/usr/bin/env bash
# What a site needs before hpcfl starts.  Copy it, keep the lines that your site's pages ask for, and
#   export HPCFL_SITE=slurm/sites/mine.sh
# before sbatch; sbatch hands the variable to the job.  slurm/run.sh sources it once, on the first
# node of the job, in the directory of submission; every rank inherits what it exports (by export:
# declare -x is lost, as the file is sourced in a function).  A line that must not fail ends with
# `|| return`: the job then ends with exit code 2 and is not requeued.

# Modules: the MPI that mpi4py was built for, and the CUDA of the torch build.
# module purge
# module load python/3.12 openmpi cuda || return

# An environment in another place than .venv, which is found by itself.
# source "$HOME/miniforge3/etc/profile.d/conda.sh" && conda activate hpcfl || return

# Or a container, see docs/howto/schedulers.md: the words that start hpcfl in it.
# export HPCFL_COMMAND="apptainer exec --nv --bind $PWD $HOME/hpcfl.sif hpcfl"

# srun's --mpi: pmi2 (default; MPICH and those like it), pmix (Open MPI) or none (with comm.backend: nccl).
# export HPCFL_MPI=pmix

# Options of srun for the ranks: each on cores of its own.
export HPCFL_SRUN="--cpu-bind=cores"

# The network.  hpcfl sets none of these; names of devices are those of `ip link` and `ibstat`.
# export NCCL_SOCKET_IFNAME=hsn0 NCCL_IB_HCA=mlx5
# export UCX_NET_DEVICES=mlx5_0:1

# A disk of the node's own, for data and client states of landmarks.sh and the scripts like it.
# export HPCFL_SCRATCH=/local/$USER
