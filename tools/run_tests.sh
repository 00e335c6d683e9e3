#!/usr/bin/env bash
# All tests, in two runs side by side: the kernels with the executor, and the rest, which waits a lot for its servers.
#   tools/run_tests.sh PYTHON            both runs
#   tools/run_tests.sh PYTHON ARGS...    one run of pytest with these arguments
set -uo pipefail
cd "$(dirname "$0")/.."
python=$1
shift
if (($#)); then
  exec "$python" -m pytest -q "$@"
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
kernels=(tests/kernels tests/simt tests/ops tests/layers tests/engine/test_simt_engine.py tests/engine/test_simt_moe.py)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$python" -m pytest -q -p no:cacheprovider "${kernels[@]}" > "$log" 2>&1 &
beside=$!
rest=0
"$python" -m pytest -q "${kernels[@]/#/--ignore=}" || rest=$?
kernels_status=0
wait "$beside" || kernels_status=$?
printf '\n== kernels, executor, ops, layers\n'
cat "$log"
exit $((rest ? rest : kernels_status))
