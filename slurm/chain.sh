#!/usr/bin/env bash
# For sites that forbid requeueing: submit N jobs, each of which goes on where the last one stopped.
#
#   slurm/chain.sh N [options of sbatch] slurm/run.sh JOB.yaml [key=value ...]
#
# On a login node, not by sbatch.  Once the run is finished or broken, what is left of the chain is
# cancelled.  After a link that was cancelled alone the next one goes on; to stop all of them:
# scancel --name=NAME, which is said here.
set -euo pipefail

if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: slurm/chain.sh N [options of sbatch] slurm/run.sh JOB.yaml [key=value ...]" >&2
  exit 2
fi
links=$1
shift
for word in "$@"; do
  case $word in
    -J* | --j* | -d* | --dep*)
      echo "chain.sh: $word: leave it out; the chain needs --job-name and --dependency" >&2
      exit 2
      ;;
  esac
done
# By its name a job finds the others of its chain.
HPCFL_CHAIN=chain-$(date +%s)-$$
export HPCFL_CHAIN

# The first is held until all are there: one that fails at once must find those to be cancelled.
job=$(sbatch --parsable --hold --no-requeue --job-name="$HPCFL_CHAIN" "$@")
first=${job%%;*} # the cluster's name may follow
ids=$first
trap 'scancel --quiet --name="$HPCFL_CHAIN" --user="$(id -un)"
  echo "chain.sh: not all $links jobs could be submitted, those that were are cancelled" >&2' ERR
for ((link = 2; link <= links; link++)); do
  # After any end: on most sites exit code 75 counts as a failure.
  job=$(sbatch --parsable --no-requeue --job-name="$HPCFL_CHAIN" \
    --dependency="afterany:${ids##* }" "$@")
  ids+=" ${job%%;*}"
done
scontrol release "$first"
echo "$HPCFL_CHAIN: $ids"
