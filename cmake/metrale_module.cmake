# Compile options of every target in the tree. They are usage requirements of nothing: an installed library asks its
# users for C++20 and nothing else.
add_library(metrale_build_options INTERFACE)
target_compile_options(metrale_build_options INTERFACE
  -march=x86-64-v3 -ffp-contract=off -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor
  $<$<BOOL:${METRALE_WERROR}>:-Werror>)
target_compile_definitions(metrale_build_options INTERFACE $<$<BOOL:${METRALE_CHECKS}>:METRALE_CHECKS=1>)
if(METRALE_SANITIZE)
  target_compile_options(metrale_build_options INTERFACE
    -fsanitize=${METRALE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(metrale_build_options INTERFACE -fsanitize=${METRALE_SANITIZE})
endif()
if(METRALE_FUZZ)
  target_compile_options(metrale_build_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# metrale_add_module(kv SOURCES a.cpp b.cpp DEPS base gpu PRIVATE_DEPS PkgConfig::HWY)
# One static library per module, `metrale::<name>`, with the public headers under include/metrale/<name>/.
function(metrale_add_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PUBLIC_DEPS;PRIVATE_DEPS" ${ARGN})
  set(target metrale_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(metrale::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} VERSION ${PROJECT_VERSION})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  list(TRANSFORM ARG_DEPS PREPEND metrale_)
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} ${ARG_PUBLIC_DEPS}
    PRIVATE ${ARG_PRIVATE_DEPS} $<BUILD_INTERFACE:metrale_build_options>)
  set_property(GLOBAL APPEND PROPERTY METRALE_MODULES ${target})
endfunction()

# metrale_add_test(kv_block_pool SOURCES kv/block_pool_test.cpp DEPS kv LABELS unit)
# One GoogleTest program; every TEST in it is a CTest case carrying the labels.
function(metrale_add_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;PRIVATE_DEPS;LABELS" ${ARGN})
  set(target test_${name})
  add_executable(${target} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPS PREPEND metrale::)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} ${ARG_PRIVATE_DEPS} metrale_test_main metrale_build_options)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  gtest_discover_tests(${target} TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60 TEST_LIST ${target}_cases
    PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  # gtest_discover_tests takes a list of labels apart, so ctest sets them from the list of cases.
  set(labels_file ${CMAKE_CURRENT_BINARY_DIR}/${target}_labels.cmake)
  file(WRITE ${labels_file} "set_tests_properties(\${${target}_cases} PROPERTIES LABELS \"${ARG_LABELS}\")\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels_file})
endfunction()

# metrale_source_deps(a_fuzz.cpp fuzz-deps out): the targets that the source's `// fuzz-deps: weights base` line names;
# a plain name is a module, one with :: stands for itself.
function(metrale_source_deps source key out)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  file(STRINGS ${source} line LIMIT_COUNT 1 REGEX "^// ${key}:")
  if(NOT line)
    message(FATAL_ERROR "${source} has no line '// ${key}: MODULE...'")
  endif()
  string(REGEX REPLACE "^// ${key}:" "" line "${line}")
  separate_arguments(deps UNIX_COMMAND "${line}")
  list(TRANSFORM deps REPLACE "^([a-z0-9_]+)$" "metrale::\\1")
  set(${out} ${deps} PARENT_SCOPE)
endfunction()

# The umbrella target, the CMake package and the pkg-config file.
function(metrale_umbrella)
  get_property(modules GLOBAL PROPERTY METRALE_MODULES)
  add_library(metrale INTERFACE)
  add_library(metrale::metrale ALIAS metrale)
  target_link_libraries(metrale INTERFACE ${modules})
  include(CMakePackageConfigHelpers)
  install(TARGETS metrale ${modules} EXPORT metraleTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/metrale DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/metrale)
  install(EXPORT metraleTargets NAMESPACE metrale:: DESTINATION ${package_dir})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/metraleConfig.cmake.in
    ${PROJECT_BINARY_DIR}/metraleConfig.cmake INSTALL_DESTINATION ${package_dir})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/metraleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/metraleConfig.cmake ${PROJECT_BINARY_DIR}/metraleConfigVersion.cmake
    DESTINATION ${package_dir})
  list(TRANSFORM modules REPLACE "^metrale_" "-lmetrale_" OUTPUT_VARIABLE libs)
  list(REVERSE libs)
  list(JOIN libs " " METRALE_PC_LIBS)
  file(RELATIVE_PATH METRALE_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/metrale.pc.in ${PROJECT_BINARY_DIR}/metrale.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/metrale.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
