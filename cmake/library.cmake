# dflash_library(<layer> [LOOSE] SOURCES ... LINK ...): one static library a layer; LINK names the layers and packages it may use.
function(dflash_library layer)
  cmake_parse_arguments(ARG "LOOSE" "" "SOURCES;LINK" ${ARGN})
  add_library(dflash_${layer} STATIC ${ARG_SOURCES})
  if(ARG_LOOSE)
    target_link_libraries(dflash_${layer} PUBLIC dflash_flags ${ARG_LINK})
  else()
    target_link_libraries(dflash_${layer} PUBLIC dflash_flags ${ARG_LINK} PRIVATE dflash_strict_flags)
  endif()
endfunction()

# dflash_test(<name> SOURCES ... LINK ... [LABELS ...]): one GoogleTest program; every test case is counted by ctest.
function(dflash_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE dflash_flags ${ARG_LINK} GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE
    DFLASH_FIXTURES="${PROJECT_SOURCE_DIR}/fixtures"
    DFLASH_BINARY_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
