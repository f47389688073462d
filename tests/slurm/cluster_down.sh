#!/usr/bin/env bash
# Stop what cluster_up.sh started in DIR: its jobs first, then its daemons by their pid files.
set -euo pipefail
dir=$1
export SLURM_CONF=$dir/slurm.conf

# A daemon whose parent has not yet reaped it still answers kill -0: a zombie counts as gone.
alive() { [ -r "/proc/$1/stat" ] && [[ $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) != Z* ]]; }

if [ -s "$dir/run/slurmctld.pid" ]; then
  scancel --quiet --full --signal=KILL --user="$(id -un)" || true
  scancel --quiet --user="$(id -un)" || true
  for ((try = 0; try < 100; try++)); do
    [ -z "$(squeue -h -t R,CG 2>/dev/null)" ] && break
    sleep 0.1
  done
fi
pids=()
for file in "$dir"/run/*.pid; do
  [ -s "$file" ] && pids+=("$(<"$file")")
done
for signal in TERM KILL; do
  for ((try = 0; try < 600; try++)); do
    left=()
    for pid in "${pids[@]}"; do
      alive "$pid" && left+=("$pid")
    done
    [ ${#left[@]} = 0 ] && exit 0
    [ "$try" = 0 ] && { kill "-$signal" "${left[@]}" 2>/dev/null || true; }
    sleep 0.1
  done
done
echo "still running: ${left[*]}" >&2
exit 1
