#include "kernels/device_peak.h"

#include <stddef.h>
#include <string.h>

/* By NVIDIA's data sheets; of GeForce, by the white papers of the architectures. */
static const struct {
    const char *name;
    double bf16, tf32, f32;
} cards[] = {
    {"NVIDIA A100-PCIE-40GB", 312, 156, 19.5},
    {"NVIDIA A100 80GB PCIe", 312, 156, 19.5},
    {"NVIDIA A100-SXM4-40GB", 312, 156, 19.5},
    {"NVIDIA A100-SXM4-80GB", 312, 156, 19.5},
    {"NVIDIA A10", 125, 62.5, 31.2},
    {"NVIDIA A30", 165, 82, 10.3},
    {"NVIDIA A40", 149.7, 74.8, 37.4},
    {"NVIDIA B200", 2250, 1125, 75},
    {"NVIDIA GeForce RTX 3090", 71, 35.6, 35.6},
    {"NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6},
    {"NVIDIA GH200 480GB", 989.4, 494.7, 66.9},
    {"NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9},
    {"NVIDIA H100 NVL", 835, 417.5, 60},
    {"NVIDIA H100 PCIe", 756, 378, 51.2},
    {"NVIDIA H200", 989.4, 494.7, 66.9},
    {"NVIDIA H200 NVL", 835.5, 417.8, 60},
    {"NVIDIA L4", 121, 60, 30.3},
    {"NVIDIA L40S", 362.1, 183, 91.6},
};

double device_peak_tflops(const char *name, enum compute_type type) {
    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        if (strcmp(name, cards[i].name) != 0) continue;
        return type == COMPUTE_BF16   ? cards[i].bf16
               : type == COMPUTE_TF32 ? cards[i].tf32
                                      : cards[i].f32;
    }
    return 0;
}
