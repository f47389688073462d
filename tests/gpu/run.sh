#!/usr/bin/env bash
# Test and measure on a machine with a GPU, which may have no network: "make gpu" calls this.
#
#   tests/gpu/run.sh [--rehearse]
#
# The tests are those of tests/gpu, and of tests/triton_kernels, whose kernels run on the GPU then.
# PYTHON (python3) must have torch. Packages that it lacks are taken from wheels/*.whl, anew when
# these have changed; nothing is installed into it. Results are kept in runs/gpu, or RESULTS: tests.log and bench.json. Each call
# ends after about 8 minutes, and the next one continues: first the tests, then the figures.
set -euo pipefail
cd "$(dirname "$0")/../.."
minutes=8 python=${PYTHON:-python3} results=${RESULTS:-runs/gpu}
packages=$PWD/build/gpu-packages
begun=$SECONDS

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
export PYTHONPATH=$PWD:$packages
missing=$("$python" - <<'PYTHON'
from importlib.util import find_spec

modules = {
    "annotated_types": "annotated-types", "h5py": "h5py", "hypothesis": "hypothesis",
    "matplotlib": "matplotlib", "numpy": "numpy", "PIL": "pillow", "pydantic": "pydantic",
    "pydantic_core": "pydantic-core", "pytest": "pytest", "rich": "rich",
    "safetensors": "safetensors", "shtab": "shtab", "sklearn": "scikit-learn",
    "typing_inspection": "typing-inspection", "yaml": "pyyaml",
}
print(*(package for module, package in modules.items() if find_spec(module) is None))
PYTHON
)
if [ -n "$missing" ]; then
  echo "make gpu: $python lacks $missing; put their wheels into the folder wheels" >&2
  exit 2
fi

if [ "${1-}" != --rehearse ] &&
  ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "make gpu: torch of $python sees no GPU; make gpu GPU=--rehearse runs tiny sizes" >&2
  exit 2
fi

mkdir -p "$results"
status=0 state=$(git describe --always --dirty --abbrev=40 2>/dev/null || echo none)
if [ "${1-}" != --rehearse ] && [ "$(cat "$results/tests.passed" 2>/dev/null)" != "$state" ]; then
  # A failure keeps no one from the figures: the next call runs the failed tests again.
  timeout "${minutes}m" "$python" -m pytest -q --last-failed -o "cache_dir=$results/$state" \
    tests/gpu tests/triton_kernels 2>&1 | tee "$results/tests.log" || status=$?
  [ "$status" != 0 ] || echo "$state" > "$results/tests.passed"
fi
left=$((60 * minutes - (SECONDS - begun)))
if [ "$left" -lt 60 ]; then
  echo "make gpu: the tests ended with $status; make gpu again measures"
  exit "$status"
fi
"$python" benchmarks/gpu.py --json "$results/bench.json" \
  --minutes "$(printf '%d.%02d' $((left / 60)) $((left % 60 * 100 / 60)))" "$@"
exit "$status"
