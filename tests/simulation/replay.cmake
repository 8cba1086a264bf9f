# cmake -DSIMULATE=program -DDIRECTORY=scratch -P replay.cmake: one seed twice, byte for byte.
foreach(time first second)
  execute_process(COMMAND ${SIMULATE} --suite memory --seed 18 --trace ${DIRECTORY}/${time}.trace
                  RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "seed 18 of suite memory failed")
  endif()
endforeach()
file(SIZE ${DIRECTORY}/first.trace bytes)
if(bytes LESS 1000)
  message(FATAL_ERROR "a trace of ${bytes} bytes holds nothing")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files ${DIRECTORY}/first.trace
                        ${DIRECTORY}/second.trace RESULT_VARIABLE differ)
if(differ)
  message(FATAL_ERROR "the same seed gave two traces")
endif()
message(STATUS "${bytes} bytes, twice the same")

# Numbers that cannot be are refused, not taken for others: -1 was once the seed 2^64 - 1.
foreach(wrong "--seed=-1" "--first=-1" "--seeds=-1" "--budget=-1" "--jobs=0")
  execute_process(COMMAND ${SIMULATE} --suite memory --trace ${DIRECTORY}/wrong.trace ${wrong}
                  RESULT_VARIABLE failed ERROR_VARIABLE said OUTPUT_VARIABLE said)
  if(NOT failed OR NOT said MATCHES "is no number from")
    message(FATAL_ERROR "${wrong} was taken: ${said}")
  endif()
endforeach()

# A sweep that is cut short says how much was left, and a seed that takes too long what it had drawn.
execute_process(COMMAND ${SIMULATE} --suite memory --seeds 1000000 --budget 0.5 --jobs 1
                RESULT_VARIABLE failed OUTPUT_VARIABLE said)
if(failed OR NOT said MATCHES "memory: [0-9]+ of 1000000 seeds in [0-9]+ s, [0-9]+ not run: the budget was 0.5 s")
  message(FATAL_ERROR "a sweep that was cut short said: ${said}")
endif()
execute_process(COMMAND ${SIMULATE} --suite throughput_wide --first 3 --seeds 1 --limit 1 --jobs 1
                RESULT_VARIABLE failed OUTPUT_VARIABLE said)
if(NOT failed OR NOT said MATCHES "seed 3 FAILED\ndrawn: ranks = 48, .*\nout of time: it ran for 1 s")
  message(FATAL_ERROR "a seed that takes longer than a second said: ${said}")
endif()
