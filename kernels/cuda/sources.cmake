# The CUDA kernels: compiled by nvcc here, and by g++ in tests/cuda_on_cpu.
set(rubato_cuda_kernels
  ${CMAKE_CURRENT_LIST_DIR}/activation_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/norm_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/optimizer_cuda.cu)
