#!/usr/bin/env bash
# Landmarks-User-160k: MobileNetV2, 1262 users, 10 a round, 5000 rounds (FedHBM paper, table 5).
#
#   hpcfl data prepare landmarks --root data
#   sbatch slurm/landmarks.sh 'algorithm={name: fedhbm}' [key=value ...]
#
# From the directory of hpcfl's sources, see slurm/staged.sh.  Without internet on the nodes, say
# model.init=FILE.  What it takes, of `hpcfl plan` on 4 ranks (before the images are there: states and
# checkpoints depend on the model and the cohorts alone):
#   stores       77.7 GB for fedhbm (19.3 MB a client), 19.8 GB a rank; the same on the node's disk
#                during the run, besides 4 GB of images.  fedavg has none
#   checkpoints  19.4 MB each, 3 at most at a time
#   memory       4.6 GB a rank or more besides images: 3 GB are CUDA's
#   GPU memory   5.9 GB a rank: 5.0 GB are activations of batches of 64 at 224x224, measured on a
#                CPU in float32
#   hours        2.9 on 4 GPUs, 6.2 on one: not measured, but of the speeds that
#                benchmarks/scale.py of a checkout assumes
#
#SBATCH --job-name=landmarks
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=96G
#SBATCH --time=08:00:00
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
  echo "landmarks.sh: scontrol show job does not say where this script lies; submit again" >&2
  exit 1
fi
exec "$(dirname "${BASH_REMATCH[1]%" $*"}")/staged.sh" landmarks-256.h5 \
  jobs/papers/base/landmarks.yaml "$@"
