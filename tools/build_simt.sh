#!/bin/sh
# Builds the SIMT executor's modules: build_simt.sh [BUILD_DIR [FAMILY...]].  Families: all unless named; one of
# them is `selftest`, the executor's own tests.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/simt}
[ $# -gt 0 ] && shift
python=${PYTHON:-.venv/bin/python}
bin=$(dirname "$python")
# Where there is no CUDA toolkit, its headers are enough (26 MB).
if ! command -v nvcc >/dev/null && [ -z "${CUDA_HOME:-}" ] && ! "$python" -c 'import importlib.metadata as m; m.version("nvidia-cuda-cccl")' 2>/dev/null; then
  "$python" -m pip install --quiet --no-deps "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*" "nvidia-cuda-cccl==13.0.*"
fi
mkdir -p "$build"
exec 9>"$build/.lock"
flock 9
set -- "$(printf '%s;' "$@")"
families=-UINFERX_SIMT_FAMILIES  # not those of the last time
[ "$1" != ";" ] && families="-DINFERX_SIMT_FAMILIES=${1%;}"
"$bin/cmake" -S csrc/simt -B "$build" -G Ninja -DPython_EXECUTABLE="$(cd "$bin" && pwd)/python" \
  -DCMAKE_MAKE_PROGRAM="$(cd "$bin" && pwd)/ninja" "$families" >"$build/configure.log" || { cat "$build/configure.log"; exit 1; }
"$bin/cmake" --build "$build" -- -k 0
