#!/bin/sh
# Collects, into .whl/, the packages that a machine without a network may lack for benchmarks/gpu.sh:
#   gpu_wheels.sh [PYTHON_VERSION]
set -eu
cd "$(dirname "$0")/.."
version=${1:-3.12}
python=${PYTHON:-.venv/bin/python}
mkdir -p .whl
platforms=""
for p in manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux1; do
  platforms="$platforms --platform ${p}_x86_64"
done
# shellcheck disable=SC2086
"$python" -m pip download -q --no-deps --only-binary=:all: --python-version "$version" --implementation cp $platforms \
  -d .whl msgspec pyzmq gguf pydantic pydantic-core annotated-types typing-inspection fastapi starlette uvicorn \
  annotated-doc pytest-asyncio
# Its dependencies would build llama.cpp; the model file (90 MB) has to fit the transfer.
du -sh .whl
