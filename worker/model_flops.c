#include "worker/model_flops.h"

#include "worker/model_family.h"

double model_flops(const struct model_shape *shape, int64_t T) {
    struct model_product products[MODEL_PRODUCTS_MAX];
    int count = shape->family->products(shape, products);
    double layer = 0;
    for (int i = 0; i < count; i++)
        layer += (double)products[i].in * (double)products[i].out;
    double head = (double)shape->channels * (double)shape->vocab;
    double attention = (double)shape->layers * (double)shape->channels * (double)T;
    return 6 * ((double)shape->layers * layer + head) + 12 * attention;
}
