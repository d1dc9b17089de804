# Flags hang on targets through this interface library, never on globals.
add_library(dflash_flags INTERFACE)
target_include_directories(dflash_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(dflash_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Werror>)
target_compile_definitions(dflash_flags INTERFACE $<$<BOOL:${DFLASH_ENABLE_ASSERTS}>:DFLASH_ENABLE_ASSERTS>)
target_link_libraries(dflash_flags INTERFACE fmt::fmt)
set(dflash_sanitizers ${DFLASH_SANITIZE})
if(DFLASH_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "DFLASH_BUILD_FUZZERS needs clang: -DCMAKE_CXX_COMPILER=clang++")
  endif()
  set(dflash_sanitizers fuzzer-no-link,address,undefined)
endif()
if(dflash_sanitizers)
  # Undefined behaviour ends the program, as a bad address does: a line among the output would fail no test.
  target_compile_options(dflash_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    -fsanitize=${dflash_sanitizers} -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(dflash_flags INTERFACE -fsanitize=${dflash_sanitizers})
endif()

# Index arithmetic mixes signed and unsigned by nature in kernels; everywhere else conversions are explicit.
add_library(dflash_strict_flags INTERFACE)
target_link_libraries(dflash_strict_flags INTERFACE dflash_flags)
target_compile_options(dflash_strict_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wconversion>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-sign-conversion>)  # clang counts it in, gcc does not
