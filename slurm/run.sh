#!/usr/bin/env bash
# Run one job under Slurm until it is done, however often it is preempted or out of time.
#
#   sbatch [--ntasks=8 --gpus-per-task=1 ...] slurm/run.sh JOB.yaml [key=value ...]
#
# Submit from the directory that the job's paths are relative to.  hpcfl is taken from .venv there,
# or else from the environment that was active at submission.  From the environment:
#   HPCFL_OUT   the run directory; default runs/JOB-SLURMJOBID, the same after every requeue
#   HPCFL_MPI   srun's --mpi: pmi2 (default; MPICH and its kin) or pmix (Open MPI)
#
#SBATCH --job-name=hpcfl
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=1
#SBATCH --time=04:00:00
#SBATCH --requeue
# A requeued job goes on in the same file.
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# To the ranks, not to this shell: finish the round, write a checkpoint, exit 75.  The lead must
# cover the longest round and a checkpoint.
#SBATCH --signal=USR1@120
set -euo pipefail

if [ $# = 0 ] || [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "usage: sbatch [options] slurm/run.sh JOB.yaml [key=value ...]" >&2
  exit 2
fi
job=$1
out=${HPCFL_OUT:-runs/$(basename "$job" .yaml)-$SLURM_JOB_ID}
if [ -d .venv/bin ]; then
  PATH=$PWD/.venv/bin:$PATH
fi

# Only what this Slurm job began is resumed: at its first start, hpcfl refuses a directory that
# holds a run, perhaps of another job, and says what to do.
restarts=${SLURM_RESTART_COUNT:-0}
command=(hpcfl run "$@" --out "$out")
if [ "$restarts" != 0 ] && compgen -G "$out/checkpoints/*/manifest.json" >/dev/null; then
  command=(hpcfl resume "$out")
elif [ "$restarts" != 0 ] && [ -d "$out" ]; then
  # A start that was killed before its first checkpoint left nothing to resume: set it aside, for
  # whoever wants to see why.
  mv "$out" "$out.start-$restarts"
fi
echo "$(date '+%F %T') job $SLURM_JOB_ID, start $((restarts + 1)):" \
  "${command[*]}, $SLURM_NTASKS ranks on $SLURM_JOB_NODELIST"

# SIGTERM may reach this shell too (scancel, scancel --batch).  Untrapped it would end at once, and
# the ranks with it, before their checkpoint; trapped, bash waits for srun.
trap : TERM
# srun does not inherit --cpus-per-task since Slurm 22.05.  A rank that fails ends all others,
# which would wait for it for ever.
status=0
srun --mpi="${HPCFL_MPI:-pmi2}" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 \
  "${command[@]}" || status=$?

# 75: stopped by a signal, with a checkpoint.  Slurm does not requeue a job that ends by itself,
# even in its grace time.  A job that was cancelled is no longer RUNNING, and stays cancelled.
if [ "$status" = 75 ] && [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T)" = RUNNING ]; then
  echo "$(date '+%F %T') job $SLURM_JOB_ID: stopped with a checkpoint, requeued"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
