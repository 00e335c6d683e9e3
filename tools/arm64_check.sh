#!/usr/bin/env bash
# Compiles the CPU kernels for arm64 (NEON) and runs their products under qemu.  Needs a cross-compiler and qemu's
# user mode (Debian: g++-aarch64-linux-gnu, qemu-user-static); 77 when one of them is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
cxx=${CXX_ARM64:-aarch64-linux-gnu-g++}
qemu=${QEMU_ARM64:-qemu-aarch64-static}
for tool in "$cxx" "$qemu"; do
  command -v "$tool" > /dev/null || { echo "arm64_check: $tool is missing" >&2; exit 77; }
done
build=${1:-build/arm64}
mkdir -p "$build"
# As CMakeLists.txt has it for processors that are not x86.
flags="-std=gnu++17 -O2 -Wall -Wextra -Werror -ffp-contract=off -fopenmp -Icsrc"
sources=$(find csrc/cpu -name '*.cpp')
for source in $sources tests/arm64/selftest.cpp; do
  object=$build/$(echo "$source" | tr / _).o
  isa=""
  case $source in */isa/*) isa="-DINFERX_ISA=base -fno-math-errno -fno-trapping-math" ;; esac
  echo "$cxx $flags $isa -c $source -o $object"
done | xargs -P "$(nproc)" -I{} sh -c "{}"
"$cxx" -static -fopenmp "$build"/*.o -o "$build/selftest"
"$qemu" "$build/selftest"
