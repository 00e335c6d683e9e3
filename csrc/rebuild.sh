#!/bin/sh
# Rebuilds what changed under csrc/ and puts the module into the editable install of .venv (or of $PYTHON).
# One build at a time; the new module replaces the old in one step, so running processes keep theirs.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
build=${BUILD_DIR:-build/editable}
exec 9>"$build/.lock"
flock 9
cmake=$(dirname "$python")/cmake
[ -x "$cmake" ] || cmake=cmake
"$cmake" --build "$build" "$@"
target=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/inferx
for module in "$build"/_C.*.so; do
  # A symbol that nobody defines shows only here, and a module that cannot be loaded would stop everybody.
  "$python" -c 'import ctypes, os, sys, torch; ctypes.CDLL(os.path.abspath(sys.argv[1]), os.RTLD_NOW)' "$module"
  cp "$module" "$target/.$(basename "$module").new"
  mv "$target/.$(basename "$module").new" "$target/$(basename "$module")"
done
