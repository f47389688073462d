#!/usr/bin/env bash
# Test and measure on a machine with a GPU, which may have no network: "make gpu" calls this.
#
#   tests/gpu/run.sh [options and parts of benchmarks/gpu.py]
#
# PYTHON (python3) must have torch. Packages that it lacks are taken from wheels/*.whl, anew when
# these have changed; nothing is installed into it.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
packages=$PWD/build/gpu-packages

if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "make gpu: $python cannot import torch; name another by make gpu PYTHON=/path/to/python" >&2
  exit 2
fi
if compgen -G 'wheels/*.whl' >/dev/null; then
  # By their contents: a copied wheel may be older than the folder that lacks it.
  wheels=$(cksum wheels/*.whl)
  if [ "$wheels" != "$(cat "$packages/wheels.txt" 2>/dev/null)" ]; then
    rm -rf "$packages" # pip replaces nothing in such a folder
    "$python" -m pip install --quiet --no-index --no-deps --target "$packages" wheels/*.whl
    echo "$wheels" >"$packages/wheels.txt"
  fi
fi
export PYTHONPATH=$PWD:$packages${PYTHONPATH:+:$PYTHONPATH}
# A package may be there and too old: so what needs them is imported.
if ! error=$("$python" -c 'import hpcfl.job.schema, hpcfl.start.start, h5py, matplotlib, pytest' 2>&1); then
  echo "make gpu: $python lacks a package that hpcfl needs; put its wheel into the folder wheels:" \
    "$(tail -n 1 <<<"$error")" >&2
  exit 2
fi
if [[ " $* " != *" --rehearse "* ]] &&
  ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "make gpu: torch of $python sees no GPU; make gpu GPU=--rehearse runs tiny sizes" >&2
  exit 2
fi
exec "$python" benchmarks/gpu.py "$@"
