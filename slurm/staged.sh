#!/usr/bin/env bash
# Called by landmarks.sh and the scripts like it inside a Slurm job, not by sbatch: as run.sh, with data and
# client states on disks of the nodes' own.  run.sh copies the files, for it knows what to do where
# that fails, and on a signal meanwhile.
#   staged.sh FILE [FILE ...] JOB.yaml [key=value ...]
# From the environment, besides run.sh's own:
#   HPCFL_DATA     the folder in which `hpcfl data prepare` left every FILE; default data
#   HPCFL_SCRATCH  a folder on every node, the same in all starts of a run; default
#                  /tmp/hpcfl-$USER.  Jobs of one node share the copies there
set -euo pipefail

files=()
while [ $# -gt 0 ] && [[ $1 != *.y?(a)ml ]]; do
  files+=("$1")
  shift
done
if [ ${#files[@]} = 0 ] || [ $# = 0 ] || [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "usage, inside of a Slurm job: staged.sh FILE [FILE ...] JOB.yaml [key=value ...]" >&2
  exit 2
fi
trap 'export HPCFL_ASKED=1' USR1 TERM # run.sh does what it asks for
export HPCFL_SCRATCH=${HPCFL_SCRATCH:-/tmp/hpcfl-$(id -un)}
HPCFL_STAGE=$(
  IFS=:
  echo "${files[*]}"
)
export HPCFL_STAGE
exec "$(dirname "$0")/run.sh" "$@"
