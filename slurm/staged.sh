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

# Preempted meanwhile: run.sh is not there yet.
trap 'scontrol requeue "$SLURM_JOB_ID"; exit 75' USR1
# Once a node.  A copy that is cut short must not look like one that is whole.
# shellcheck disable=SC2016  # the nodes' shells are to expand it
srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 bash -euc '
  mkdir -p "$2"
  [ -e "$2/$3" ] || { cp "$1/$3" "$2/$3.part" && mv "$2/$3.part" "$2/$3"; }
' stage "$data" "$scratch" "$file"

trap - USR1
# Data must stay where the run found them; states may move, to a folder that the site clears.
exec "$(dirname "$0")/run.sh" "$job" "data.root=$scratch" "store.dir=${SLURM_TMPDIR:-$scratch}" "$@"
