# cmake -DSIMULATE=program -DDIRECTORY=scratch -P replay.cmake: runs a seed twice, compares traces.
foreach(time first second)
  execute_process(COMMAND ${SIMULATE} --suite memory --seed 18 --trace ${DIRECTORY}/${time}.trace
                  RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "seed 18 of suite memory failed")
  endif()
endforeach()
file(SIZE ${DIRECTORY}/first.trace bytes)
if(bytes LESS 1000)
  message(FATAL_ERROR "a trace of ${bytes} bytes is too short to hold the events")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${DIRECTORY}/first.trace
                        ${DIRECTORY}/second.trace RESULT_VARIABLE differ)
if(differ)
  message(FATAL_ERROR "the same seed gave two traces")
endif()
message(STATUS "${bytes} bytes, twice the same")

# Invalid numbers are rejected, not converted: -1 was once taken as the seed 2^64 - 1.
foreach(wrong "--seed=-1" "--first=-1" "--seeds=-1" "--budget=-1" "--jobs=0")
  execute_process(COMMAND ${SIMULATE} --suite memory --trace ${DIRECTORY}/wrong.trace ${wrong}
                  RESULT_VARIABLE failed ERROR_VARIABLE said OUTPUT_VARIABLE said)
  if(NOT failed OR NOT said MATCHES "is no number from")
    message(FATAL_ERROR "${wrong} was accepted: ${said}")
  endif()
endforeach()

# A sweep that ends early reports how many seeds were left, a seed that times out its drawn options.
execute_process(COMMAND ${SIMULATE} --suite memory --seeds 1000000 --budget 0.5 --jobs 1
                RESULT_VARIABLE failed OUTPUT_VARIABLE said)
if(failed OR NOT said MATCHES "memory: [0-9]+ of 1000000 seeds in [0-9]+ s, [0-9]+ not run: the budget was 0.5 s")
  message(FATAL_ERROR "a sweep that ended early printed: ${said}")
endif()
execute_process(COMMAND ${SIMULATE} --suite throughput_wide --first 3 --seeds 1 --limit 1 --jobs 1
                RESULT_VARIABLE failed OUTPUT_VARIABLE said)
if(NOT failed OR NOT said MATCHES "seed 3 FAILED\ndrawn: ranks = 48, .*\nout of time: it ran for 1 s")
  message(FATAL_ERROR "a seed that timed out after a second printed: ${said}")
endif()
