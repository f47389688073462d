#!/usr/bin/env bash
# Run one job under Slurm until it is done, however often it is preempted, out of time or killed.
#
#   sbatch [options] slurm/run.sh JOB.yaml [key=value ...]
#   sbatch -n 8 --gpus-per-task=1 slurm/run.sh ...                     8 ranks, a GPU each
#   sbatch -N 4 --ntasks-per-node=4 --gpus-per-node=4 slurm/run.sh ... 16 ranks on 4 nodes
#
# The same command goes on with the same run, also as a new Slurm job and on other numbers of nodes.
# Submit from the directory that the job's paths are relative to.  hpcfl is taken from .venv there,
# or else from the environment that was active at submission.  A sweep, SWEEP.yaml, is played on one
# node and all GPUs that the job has there.  From the environment:
#   HPCFL_OUT   the run directory; default as `hpcfl run` and `hpcfl sweep` take it
#   HPCFL_MPI   srun's --mpi: pmi2 (default; MPICH and its kin) or pmix (Open MPI)
#
#SBATCH --job-name=hpcfl
#SBATCH --cpus-per-task=1
#SBATCH --time=04:00:00
#SBATCH --requeue
# A requeued job goes on in the same file.
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# To this shell, which hands it on to the ranks: finish the round, write a checkpoint, exit 75.  The
# lead must cover the longest round and a checkpoint.
#SBATCH --signal=B:USR1@120
set -euo pipefail

if [ $# = 0 ] || [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "usage: sbatch [options] slurm/run.sh JOB.yaml [key=value ...]" >&2
  exit 2
fi
# SIGTERM too may reach this shell (preemption, scancel).  Untrapped it would end at once, and the
# ranks with it, before their checkpoint.
asked='' caught='' srun=''
# shellcheck disable=SC2329  # the trap calls it
stop() {
  asked=1 caught=1
  if [ -n "$srun" ]; then
    kill -USR1 "$srun" 2>/dev/null || true # srun hands it on to the ranks, or has ended
  fi
}
trap stop USR1 TERM

if [ -d .venv/bin ]; then
  PATH=$PWD/.venv/bin:$PATH
fi
# What glibc keeps free for each thread holds larger free blocks apart: over thousands of rounds a
# rank would take up to a third more memory than it needs.
if [[ ${GLIBC_TUNABLES:-} != *tcache_count* ]]; then
  export GLIBC_TUNABLES=${GLIBC_TUNABLES:+$GLIBC_TUNABLES:}glibc.malloc.tcache_count=0
fi
# Of an array, the id of its last task is that of the whole array: requeued by it, all would be.
id=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_JOB_ID:-}" ] || id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID

# srun does not inherit --cpus-per-task since Slurm 22.05.  Once a rank has left, those that would
# wait for it for ever are ended, but not at once: also ranks that leave with one exit code do so a
# moment apart, and with --kill-on-bad-exit=1 srun kills the last of them and returns 143.
step=(srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=0 --wait=15)
if grep -qs '^grid:' "$1"; then
  # One task, which starts the runs itself.  srun would take over how the job's GPUs were asked for,
  # which may be more than one node has, or fewer than this one.
  unset SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU
  step+=(--nodes=1 --ntasks=1 --mpi=none --nodelist="$SLURMD_NODENAME"
    ${SLURM_GPUS_ON_NODE:+--gpus="$SLURM_GPUS_ON_NODE"})
  out=${HPCFL_OUT:-runs/$(basename "${1%.*}")}
  command=(hpcfl sweep "$@" --out "$out")
else
  step+=(--mpi="${HPCFL_MPI:-pmi2}")
  # The ranks' step gets a number of its own in every life (a requeued job counts from 0 again).
  # MPICH names the memory that ranks of a node share after job and step: they would meet in what
  # those of a life that was killed left in /dev/shm, and fail.
  for ((life = 0; life < ${SLURM_RESTART_COUNT:-0}; life++)); do
    # Without GPUs, however they were asked for.  If it fails, the ranks can mostly start even so.
    env -u SLURM_GPUS_PER_NODE \
      srun --nodes=1 --ntasks=1 --mpi=none --overlap --gres=none true || true
  done
  out=${HPCFL_OUT:-$(hpcfl check "$@" --where)}
  command=(hpcfl run "$@" --out "$out" --continue)
fi

# The committed checkpoints, of all runs of a sweep.  Those of round 0 are no progress.
committed() {
  if [ -d "$out" ]; then
    # find fails if a checkpoint is pruned meanwhile.
    { find -H "$out" -path '*/checkpoints/*/manifest.json' \
      ! -path '*/checkpoints/00000000/*' || true; } | sort
  fi
}

# Slurm may be too busy to answer.
insist() {
  local pause
  for pause in 1 2 4; do
    "$@" && return
    sleep "$pause" || true  # a signal meanwhile is no reason to give up
  done
  "$@"
}

say() { echo "$(date '+%F %T') job $id: $*"; }

before=$(committed)
say "start $((${SLURM_RESTART_COUNT:-0} + 1)): ${command[*]}," \
  "${SLURM_NTASKS:-1} rank(s) on $SLURM_JOB_NODELIST"

"${step[@]}" "${command[@]}" &
srun=$!
if [ -n "$asked" ]; then
  stop
fi
while true; do
  caught=''
  status=0
  wait "$srun" || status=$?
  # A signal cuts the wait short, with a status above 128.
  if [ -z "$caught" ] || [ "$status" -le 128 ]; then
    break
  fi
done

# Whether there is something to go on with, now or in the next job of a chain.
again=
case $status in
  0) ;;
  # The job, the arguments or the files are wrong, or the run diverged: so it would be again.
  2 | 3) say "exit code $status, not requeued" ;;
  75) again="stopped with a checkpoint" ;;
  # A rank was killed, a node was lost, or the program is wrong: that one must not loop.
  *)
    if [ -n "$asked" ] && [ "$status" -gt 128 ]; then
      # While it was still starting, by a signal that it did not know yet.
      again="stopped by exit code $status"
    elif [ "$(committed)" != "$before" ]; then
      again="exit code $status after new checkpoints"
    else
      say "exit code $status and no checkpoint since the start, not requeued"
    fi
    ;;
esac
if [ -n "${HPCFL_CHAIN:-}" ]; then
  # The next job of the chain goes on, also when this one was cancelled.  Where there is nothing to
  # go on with, none is to wait for its nodes.
  if [ -n "$again" ]; then
    say "$again, left to the next job of the chain"
  else
    scancel --quiet --name="$HPCFL_CHAIN" --state=PENDING --user="$(id -un)"
  fi
elif [ -n "$again" ]; then
  # A job that was cancelled is no longer RUNNING, and stays cancelled.  No answer says nothing.
  state=$(insist squeue -h -j "$id" -o %T || true)
  if [ "${state:-RUNNING}" = RUNNING ]; then
    # Slurm does not requeue a job that ends by itself, even in its grace time.
    say "$again, requeued"
    insist scontrol requeue "$id"
  else
    say "$again, but cancelled"
  fi
fi
exit "$status"
