#!/usr/bin/env bash
# iNaturalist-User-120k: MobileNetV2, 9275 users, 10 a round, 2000 rounds (FedHBM paper, table 5).
#
#   hpcfl data prepare inaturalist --root data
#   sbatch slurm/inaturalist.sh 'algorithm={name: fedhbm}' [key=value ...]
#
# From the directory of hpcfl's sources, see slurm/staged.sh.  Without internet on the nodes, say
# model.init=FILE.  What it takes, of `hpcfl plan` on 4 ranks (before the images are there: states and
# checkpoints depend on the model and the cohorts alone):
#   stores       191.2 GB for fedhbm (15.1 MB a client, 8212 of them take part), 48.6 GB a rank; the
#                same on the node's disk during the run, besides 3 GB of images.  fedavg has none
#   checkpoints  15.3 MB each, 3 at most at a time
#   memory       4.5 GB a rank or more besides images: 3 GB are CUDA's
#   GPU memory   5.9 GB a rank, as in slurm/landmarks.sh
#   hours        0.54 on 4 GPUs, 1.5 on one: not measured, but of the speeds that
#                benchmarks/scale.py of a checkout assumes
#   cohort.size=100 (table 5) takes ten times the training, and states of all users
#
#SBATCH --job-name=inaturalist
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=96G
#SBATCH --time=02:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# The longest round and a checkpoint of it, states copied from the node's disk included.
#SBATCH --signal=B:USR1@300
set -euo pipefail

export HPCFL_LEAD_S=300             # as --signal says above
trap 'export HPCFL_ASKED=1' USR1 TERM # run.sh does what it asks for
# Slurm runs a copy of this script; staged.sh lies beside the original, which its arguments may
# follow.  Slurm may be too busy to answer at once.
for pause in 1 2 4 0; do
  shown=$(scontrol show job "${SLURM_JOB_ID:?submit this with sbatch}") && break
  sleep "$pause" || true
done
if ! [[ ${shown:-} =~ Command=([^$'\n']+) ]]; then
  echo "inaturalist.sh: scontrol show job does not say where this script lies; submit again" >&2
  exit 1
fi
exec "$(dirname "${BASH_REMATCH[1]%" $*"}")/staged.sh" inaturalist-256.h5 \
  jobs/papers/base/inaturalist.yaml "$@"
