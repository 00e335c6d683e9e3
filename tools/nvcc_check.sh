#!/bin/sh
# Compiles CUDA sources as the build does and prints registers, spills and warnings:
#   nvcc_check.sh csrc/kernels/norm.cu [sm_80 sm_89 sm_90a ...]
set -eu
cd "$(dirname "$0")/.."
file=$1
shift
[ $# -gt 0 ] || set -- sm_80 sm_90a
for arch in "$@"; do
  arch=sm_${arch#sm_}
  echo "== $file $arch"
  nvcc -std=c++17 -O3 --fmad=false --extended-lambda --Werror all-warnings -Xptxas=-v -Icsrc -Xcompiler=-fPIC,-Wall,-Wextra \
    -gencode "arch=compute_${arch#sm_},code=$arch" -c "$file" -o /dev/null 2>&1 |
    sed -nE "s/.*Compiling entry function '([^']*)'.*/\1/p; s/.*(0 bytes stack.*|[0-9]+ bytes stack frame.*)/    \1/p; s/.*Used ([0-9]+ registers.*)/    \1/p; /error|warning|fatal/p" | c++filt
done
