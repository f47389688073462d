#!/usr/bin/env bash
# Many runs as an array: of one job, over its seed; or of the points of a sweep.
#
#   sbatch --array=0-3 [options] slurm/array.sh JOB.yaml [key=value ...]
#     seed=0 to seed=3 of the job, in runs/JOBNAME-seeds/seed0 and so on
#   sbatch --array=0-9 [options] slurm/array.sh SWEEP.yaml [key=value ...]
#     points 0 to 9 of the sweep; `hpcfl sweep SWEEP.yaml --submit` writes this command
#
# Names of packaged jobs and sweeps will do, too.
#
# Every task is requeued and goes on as slurm/run.sh does.  From the environment, besides its own:
#   HPCFL_OUT   the directory of the runs
#   HPCFL_PACK  so many points of a sweep are run at once by a task, on one node and its GPUs:
#               task i runs points i * HPCFL_PACK and on
#
#SBATCH --job-name=hpcfl
#SBATCH --cpus-per-task=1
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%A_%a.out
#SBATCH --signal=B:USR1@120
set -euo pipefail

if [ $# = 0 ] || [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
  echo "usage: sbatch --array=0-3 [options] slurm/array.sh JOB.yaml or SWEEP.yaml" \
    "[key=value ...]" >&2
  exit 2
fi
trap 'export HPCFL_ASKED=1' USR1 TERM # run.sh does what it asks for
# Slurm runs a copy of this script; run.sh lies beside the original, which its arguments may follow.
# Slurm may be too busy to answer at once.
for pause in 1 2 4 0; do
  shown=$(scontrol show job "$SLURM_JOB_ID") && break
  sleep "$pause" || true
done
if ! [[ ${shown:-} =~ Command=([^$'\n']+) ]]; then
  echo "array.sh: scontrol show job does not say where this script lies; submit again" >&2
  exit 1
fi
run=$(dirname "${BASH_REMATCH[1]%" $*"}")/run.sh
export HPCFL_INDEX=$SLURM_ARRAY_TASK_ID
exec "$run" "$@"
