# The device code: fat binaries made by nvcc and embedded into the kernels module. Host code never passes through nvcc.
#
# Two paths a family: `portable` (PTX and machine code of compute capability 8.0) and `sm90a`.
set(METRALE_CUDA_FLAGS -std=c++20 -O3 --fmad=false --expt-relaxed-constexpr -Werror all-warnings
  -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src)

# metrale_find_cuda(): nvcc of the PATH, of /usr/local/cuda, or of the wheels that ./dev setup cuda puts under build/.
function(metrale_find_cuda)
  find_program(METRALE_NVCC nvcc
    HINTS ${PROJECT_SOURCE_DIR}/build/cuda-toolkit/bin /usr/local/cuda/bin REQUIRED)
  message(STATUS "CUDA kernels: ${METRALE_NVCC}")
endfunction()

# metrale_fat_binary(out.fatbin source.cu sm90a "-gencode=..." [extra flags])
function(metrale_fat_binary output source)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 ${METRALE_NVCC_LAUNCHER} ${METRALE_NVCC} ${METRALE_CUDA_FLAGS} ${ARGN}
      -fatbin -MD -MF ${output}.d -MT ${output} -o ${output} ${source}
    DEPENDS ${source} DEPFILE ${output}.d VERBATIM)
endfunction()

# metrale_kernel_ptx(module source.cu): the target kernel_ptx writes ptx/<module>.ptx, whose parameter sizes
# scripts/check_kernel_abi.py --ptx compares with the argument structs.
function(metrale_kernel_ptx module source)
  set(folder ${PROJECT_BINARY_DIR}/ptx)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${folder}/${module}.ptx
    COMMAND ${METRALE_NVCC} ${METRALE_CUDA_FLAGS} -arch=compute_80 -ptx -MD -MF ${folder}/${module}.ptx.d
      -MT ${folder}/${module}.ptx -o ${folder}/${module}.ptx ${source}
    DEPENDS ${source} DEPFILE ${folder}/${module}.ptx.d VERBATIM)
  add_custom_target(kernel_ptx_${module} DEPENDS ${folder}/${module}.ptx)
  if(NOT TARGET kernel_ptx)
    add_custom_target(kernel_ptx)
  endif()
  add_dependencies(kernel_ptx kernel_ptx_${module})
endfunction()

# metrale_embed_cuda(target module source.cu): `target` gets the arrays that src/kernels/embedded_cuda.h declares for `module`.
function(metrale_embed_cuda target module source)
  get_filename_component(source ${source} ABSOLUTE)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  file(MAKE_DIRECTORY ${folder})
  metrale_fat_binary(${folder}/${module}.portable.fatbin ${source}
    -gencode=arch=compute_80,code=[compute_80,sm_80] ${ARGN})
  metrale_fat_binary(${folder}/${module}.sm90a.fatbin ${source} -gencode=arch=compute_90a,code=sm_90a ${ARGN})
  set(embedding ${folder}/${module}_embedded.cpp)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded_cuda.cpp.in ${embedding} @ONLY)
  set_source_files_properties(${embedding} PROPERTIES
    OBJECT_DEPENDS "${folder}/${module}.portable.fatbin;${folder}/${module}.sm90a.fatbin")
  target_sources(${target} PRIVATE ${embedding})
  metrale_kernel_ptx(${module} ${source})
endfunction()
