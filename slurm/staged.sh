#!/usr/bin/env bash
# Called by landmarks.sh and its kin inside a Slurm job, not by sbatch: as run.sh, with data and
# client states on disks of the nodes' own.
#   staged.sh FILE JOB.yaml [key=value ...]
# From the environment, besides run.sh's own:
#   HPCFL_DATA     the folder in which `hpcfl data prepare` left FILE; default data
#   HPCFL_SCRATCH  a folder on every node, the same in all lives of a run; default /tmp/hpcfl-$USER
set -euo pipefail

file=$1 job=$2
shift 2
data=$(realpath "${HPCFL_DATA:-data}")
scratch=${HPCFL_SCRATCH:-/tmp/hpcfl-$(id -un)}
if [ -d .venv/bin ]; then
  PATH=$PWD/.venv/bin:$PATH
fi
# By what the user said alone: the disks of the nodes make no other run.
HPCFL_OUT=${HPCFL_OUT:-$(hpcfl check "$job" "$@" --where)}
export HPCFL_OUT

# Preempted or out of time meanwhile: as run.sh does, which is not there yet.
id=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_JOB_ID:-}" ] || id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
# shellcheck disable=SC2329  # stop calls it
insist() {
  local pause
  for pause in 1 2 4; do
    "$@" && return
    sleep "$pause" || true
  done
  "$@"
}
# shellcheck disable=SC2329  # the trap calls it
stop() {
  local state
  state=$(insist squeue -h -j "$id" -o %T || true)
  if [ -z "${HPCFL_CHAIN:-}" ] && [ "${state:-RUNNING}" = RUNNING ]; then
    insist scontrol requeue "$id"
  fi
  exit 75
}
trap stop USR1 TERM
# Once a node.  A copy that is cut short must not look like one that is whole.  In the background:
# bash runs no trap before a command in the foreground has ended.
# shellcheck disable=SC2016  # the nodes' shells are to expand it
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 bash -euc '
  mkdir -p "$2"
  [ -e "$2/$3" ] || { cp "$1/$3" "$2/$3.part" && mv "$2/$3.part" "$2/$3"; }
' stage "$data" "$scratch" "$file" &
wait $!

trap - USR1 TERM
# Data must stay where the run found them; states may move, to a folder that the site clears.
exec "$(dirname "$0")/run.sh" "$job" "data.root=$scratch" "store.dir=${SLURM_TMPDIR:-$scratch}" "$@"
