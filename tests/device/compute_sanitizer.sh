#!/usr/bin/env bash
# Runs NVIDIA's compute-sanitizer on small exchanges between ranks that share one GPU: their kernels
# are one grid, so the tool cannot serialise kernels that wait for one another.
#
#   tests/device/compute_sanitizer.sh [folder of the test programs; default: build/cuda/tests]
set -uo pipefail
programs=${1:-build/cuda/tests}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
export CUDA_VISIBLE_DEVICES=0

exchanges='Exchange.SomeRanksMayHaveNoTokens/cuda:Exchange.AllTokensMayGoToOneExpert/cuda'
exchanges+=':Exchange.TakesIdsOfEitherWidth/cuda:Exchange.TokensMayGoNowhere/cuda'
failed=0
for tool in memcheck racecheck synccheck; do
  for run in "device_test --gtest_filter=SharedGpuTest.KernelsOfAllRanksMeet" \
             "expert_parallel_test --gtest_filter=$exchanges"; do
    echo "== $tool: $run"
    # shellcheck disable=SC2086  # $run holds several words.
    "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 "$programs"/$run --gtest_brief=1 ||
      failed=1
  done
done
[ $failed -eq 0 ] && echo "compute-sanitizer: clean" || echo "compute-sanitizer: errors above"
exit $failed
