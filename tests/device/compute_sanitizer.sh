#!/usr/bin/env bash
# NVIDIA's compute-sanitizer over small exchanges of several ranks that share one GPU: they are one
# grid, so the tool cannot serialise what waits for one another.
#
#   tests/device/compute_sanitizer.sh [folder of the test programs: build/cuda/tests]
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
    # shellcheck disable=SC2086  # Words of a command.
    "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 "$programs"/$run --gtest_brief=1 ||
      failed=1
  done
done
[ $failed -eq 0 ] && echo "compute-sanitizer: clean" || echo "compute-sanitizer: errors above"
exit $failed
