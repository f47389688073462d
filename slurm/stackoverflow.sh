#!/usr/bin/env bash
# StackOverflow: a word LSTM, 40 000 users, 50 a round, 1500 rounds (FedHBM paper, table 4).
#
#   hpcfl data prepare stackoverflow --root data
#   sbatch slurm/stackoverflow.sh 'algorithm={name: fedhbm}' [key=value ...]
#
# From the directory of hpcfl's sources, see slurm/staged.sh.  What it takes, of `hpcfl plan` on 4
# ranks (before the sentences are there: states and checkpoints depend on the model and the cohorts alone):
#   stores       888.6 GB for fedhbm (16.2 MB a client, 33 887 of them take part), 223.5 GB a rank;
#                the same on the node's disk during the run, besides 6.7 GB of sentences.  Half with
#                store.dtype=bfloat16; fedavg has none
#   checkpoints  17.3 MB each, 3 at most at a time
#   memory       4.8 GB a rank or more besides sentences: 3 GB are CUDA's
#   GPU memory   under 1 GB a rank
#   hours        0.76 on 4 GPUs, 2.1 on one: not measured, but of the speeds that
#                benchmarks/scale.py of a checkout assumes
#
#SBATCH --job-name=stackoverflow
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --mem=64G
#SBATCH --time=06:00:00
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
  echo "stackoverflow.sh: scontrol show job does not say where this script lies; submit again" >&2
  exit 1
fi
exec "$(dirname "${BASH_REMATCH[1]%" $*"}")/staged.sh" stackoverflow_10000_words_20.h5 \
  jobs/papers/base/stackoverflow.yaml "$@"
