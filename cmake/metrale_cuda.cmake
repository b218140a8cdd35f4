# The device code: fat binaries made by nvcc and embedded into the kernels module. Host code never passes through nvcc.
#
# Two paths a family: `portable` (PTX and machine code of compute capability 8.0) and `sm90a`.
set(METRALE_CUDA_FLAGS -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -Werror all-warnings
  -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src)

# metrale_find_cuda(): nvcc of the PATH, of /usr/local/cuda, or of the wheels that ./dev setup cuda puts under build/.
function(metrale_find_cuda)
  find_program(METRALE_NVCC nvcc
    HINTS ${PROJECT_SOURCE_DIR}/build/cuda-toolkit/bin /usr/local/cuda/bin REQUIRED)
  execute_process(COMMAND ${METRALE_NVCC} --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "release ([0-9]+)\\.[0-9]+" release "${version}")
  set(METRALE_NVCC_MAJOR ${CMAKE_MATCH_1} PARENT_SCOPE)
  message(STATUS "CUDA kernels: ${METRALE_NVCC}, ${release}")
endfunction()

# metrale_fat_binary(out.fatbin source.cu sm90a "-gencode=..." [extra flags])
function(metrale_fat_binary output source)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 ${METRALE_NVCC_LAUNCHER} ${METRALE_NVCC} ${METRALE_CUDA_FLAGS} ${ARGN}
      -fatbin -MD -MF ${output}.d -MT ${output} -o ${output} ${source}
    DEPENDS ${source} DEPFILE ${output}.d VERBATIM)
endfunction()

# metrale_kernel_ptx(module source.cu [flags]): the target kernel_ptx writes ptx/<module>.ptx, whose parameter sizes
# scripts/check_kernel_abi.py --ptx compares with the argument structs.
function(metrale_kernel_ptx module source)
  set(folder ${PROJECT_BINARY_DIR}/ptx)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${folder}/${module}.ptx
    COMMAND ${METRALE_NVCC} ${METRALE_CUDA_FLAGS} ${ARGN} -arch=compute_80 -ptx -MD -MF ${folder}/${module}.ptx.d
      -MT ${folder}/${module}.ptx -o ${folder}/${module}.ptx ${source}
    DEPENDS ${source} DEPFILE ${folder}/${module}.ptx.d VERBATIM)
  add_custom_target(kernel_ptx_${module} DEPENDS ${folder}/${module}.ptx)
  if(NOT TARGET kernel_ptx)
    add_custom_target(kernel_ptx)
  endif()
  add_dependencies(kernel_ptx kernel_ptx_${module})
endfunction()

# metrale_embed_cuda(target module source.cu [SM90A_ONLY] [NO_PTX] [flags]): `target` gets the arrays that
# src/kernels/embedded_cuda.h declares for `module`; with SM90A_ONLY that of the portable path is empty, with NO_PTX
# kernel_ptx leaves the module out.
function(metrale_embed_cuda target module source)
  cmake_parse_arguments(ARG "SM90A_ONLY;NO_PTX" "" "" ${ARGN})
  get_filename_component(source ${source} ABSOLUTE)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  file(MAKE_DIRECTORY ${folder})
  if(ARG_SM90A_ONLY)
    file(TOUCH ${folder}/${module}.portable.fatbin)
  else()
    metrale_fat_binary(${folder}/${module}.portable.fatbin ${source}
      -gencode=arch=compute_80,code=[compute_80,sm_80] ${ARG_UNPARSED_ARGUMENTS})
  endif()
  metrale_fat_binary(${folder}/${module}.sm90a.fatbin ${source}
    -gencode=arch=compute_90a,code=sm_90a ${ARG_UNPARSED_ARGUMENTS})
  set(embedding ${folder}/${module}_embedded.cpp)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded_cuda.cpp.in ${embedding} @ONLY)
  set_source_files_properties(${embedding} PROPERTIES
    OBJECT_DEPENDS "${folder}/${module}.portable.fatbin;${folder}/${module}.sm90a.fatbin")
  target_sources(${target} PRIVATE ${embedding})
  if(NOT ARG_NO_PTX)
    metrale_kernel_ptx(${module} ${source} ${ARG_UNPARSED_ARGUMENTS})
  endif()
endfunction()

# metrale_embed_peer(target module source.cu [SM90A_ONLY] [flags]): the same for a foreign kernel, compiled against the headers
# that `scripts/setup.sh peers` puts under build/peers, with the compiler free to fuse as its authors let it.
function(metrale_embed_peer target module source)
  set(data ${METRALE_PEERS_DIR}/flashinfer/data)
  if(NOT EXISTS ${data}/include/flashinfer OR NOT EXISTS ${data}/cutlass/include)
    message(FATAL_ERROR "METRALE_PEERS needs the headers of FlashInfer and CUTLASS: run scripts/setup.sh peers")
  endif()
  list(REMOVE_ITEM METRALE_CUDA_FLAGS --fmad=false)
  set(includes)
  foreach(folder cccl/libcudacxx/include cccl/cub cccl/thrust include cutlass/include)
    list(APPEND includes -isystem ${data}/${folder})
  endforeach()
  # 20012: annotations of defaulted functions, in CUTLASS's headers.
  metrale_embed_cuda(${target} ${module} ${source} NO_PTX ${ARGN} -diag-suppress=20012 ${includes})
endfunction()
