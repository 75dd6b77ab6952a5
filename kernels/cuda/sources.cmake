# What is in librubato_cuda.so, here and in tests/cuda_on_cpu. Kernels: compiled by nvcc here, by g++
# there. Sources are plain C against CUDA's headers; of the rest of the project they have headers,
# and base's functions but for those of log.h other than log_write.
set(codecs ${CMAKE_CURRENT_LIST_DIR}/../../compression/cuda)
set(rubato_cuda_kernels
  ${codecs}/codec_block_cuda.cu
  ${codecs}/codec_cast_cuda.cu
  ${codecs}/codec_checksum_cuda.cu
  ${codecs}/codec_delta_cuda.cu
  ${codecs}/codec_int4_cuda.cu
  ${codecs}/codec_powersgd_cuda.cu
  ${codecs}/codec_randk_cuda.cu
  ${codecs}/codec_reference_cuda.cu
  ${codecs}/codec_scaled_cuda.cu
  ${codecs}/codec_signs_cuda.cu
  ${codecs}/codec_topk_cuda.cu
  ${codecs}/codec_topk_global_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/activation_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/anchor_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/cast_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/cross_entropy_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/dropout_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/embedding_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/flash_bf16_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/flash_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/flash_wide_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/norm_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/optimizer_cuda.cu
  ${CMAKE_CURRENT_LIST_DIR}/rope_cuda.cu)
set(rubato_cuda_sources
  ${codecs}/codec_cuda.c
  ${CMAKE_CURRENT_LIST_DIR}/attention_cuda.c
  ${CMAKE_CURRENT_LIST_DIR}/compute_cuda.c
  ${CMAKE_CURRENT_LIST_DIR}/device_cuda.c
  ${CMAKE_CURRENT_LIST_DIR}/group_nccl.c
  ${CMAKE_CURRENT_LIST_DIR}/library_cuda.c
  ${CMAKE_CURRENT_LIST_DIR}/linear_cuda.c
  ${CMAKE_CURRENT_LIST_DIR}/nvml.c)
