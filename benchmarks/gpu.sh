#!/usr/bin/env bash
# Everything that a short time on a GPU should give, in one go and without a network:
#   1. build for this card;  2. the kernels' tests on the nvcc build, the same as on the CPU;
#   3. the engine on the GPU;  4. the benchmarks.
# usage: benchmarks/gpu.sh [OUTPUT_DIR]      (default: $OUT, else build/gpu-results)
# Needs Python >= 3.10 with torch for CUDA, nvcc, cmake, ninja, pybind11 and pytest.  Python packages that are
# missing are taken from .whl/*.whl (tools/gpu_wheels.sh fills it where there is a network).
# Each step has a time limit, and a step that fails does not stop the next; the whole ends within nine minutes.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=${1:-${OUT:-build/gpu-results}}
mkdir -p "$out"
out=$(cd "$out" && pwd)
python=${PYTHON:-python3}
site=$(mktemp -d)
started=$SECONDS
export PYTHONUNBUFFERED=1 GOMP_SPINCOUNT=2000
failed=0

step() { # step NAME SECONDS COMMAND...
    local name=$1 limit=$2 began=$SECONDS
    shift 2
    printf '\n== %s (%d s so far, at most %d)\n' "$name" $((SECONDS - started)) "$limit"
    timeout --kill-after=5 "$limit" "$@" 2>&1 | tee "$out/$name.log" | tail -n 25
    local rc=${PIPESTATUS[0]}
    [ "$rc" -eq 0 ] || { failed=1; echo "== $name FAILED ($rc)"; }
    printf '{"step": "%s", "rc": %d, "seconds": %d}\n' "$name" "$rc" $((SECONDS - began)) >>"$out/steps.jsonl"
}

rm -f "$out/steps.jsonl"
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader | tee "$out/gpu.txt"
if compgen -G '.whl/*.whl' >/dev/null; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" .whl/*.whl
fi
export PYTHONPATH="$site:$root/python:$root/tests/kernels:$root"

# Without the options of pyproject.toml: they need plugins that the machine may not have.
cat >"$out/pytest.ini" <<'INI'
[pytest]
addopts = -q --import-mode=importlib -m gpu -p no:cacheprovider
pythonpath = .
markers =
    gpu: needs an NVIDIA GPU
    slow: takes more than a few seconds
    real_model: needs real weights on this machine
INI
tests() { "$python" -m pytest -c "$out/pytest.ini" --rootdir "$root" "$@"; }

# This card's architecture in CMake's words.
arch() {
    [ -n "${INFERX_CUDA_ARCHS:-}" ] && { echo "$INFERX_CUDA_ARCHS"; return; }
    "$python" -c 'import torch; a = "%d%d" % torch.cuda.get_device_capability(); print(a + "a" * (a == "90") + "-real")'
}
configure() { # configure SOURCE BUILD OPTIONS...
    cmake -S "$1" -B "$2" -G Ninja -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" "${@:3}" \
        >"$out/configure.log" 2>&1 || { tail -n 30 "$out/configure.log"; return 1; }
}
build() {
    configure . build/gpu -DINFERX_CUDA=ON -DINFERX_CUDA_ARCHS="$(arch)" -DINFERX_KERNEL_REPORT=ON &&
        cmake --build build/gpu && cp build/gpu/_C.*.so python/inferx/ &&
        "$python" -c 'from inferx.ops import build_info; print(build_info())'
}
# The executor's own tests, on real instructions (csrc/simt/selftest).
selftests() {
    configure csrc/simt/selftest build/selftest-cuda -DCMAKE_CUDA_ARCHITECTURES="$(arch)" &&
        cmake --build build/selftest-cuda &&
        INFERX_SIMT_BUILD=$root/build/selftest-cuda tests --maxfail=20 "$root/tests/simt"
}
export -f arch configure build tests selftests
export python out root

step build 180 bash -c build
step kernel-tests 120 bash -c "tests --maxfail=20 $root/tests/kernels $root/tests/ops/test_copy_blocks.py"
step engine-tests 40 bash -c "tests $root/tests/engine/test_cuda_engine.py"
step instructions 90 bash -c selftests
step kernels 110 "$python" -m benchmarks.kernels --device cuda --quick --json "$out/kernels.json"
printf '\n== done in %d s\n' $((SECONDS - started))
exit $failed
