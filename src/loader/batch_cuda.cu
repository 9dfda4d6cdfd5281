// Batches on CUDA.
#include "loader/batch.hpp"

namespace robocache::loader_detail {

std::unique_ptr<DeviceBatch> make_device_batch(const BatchPlan&, Stream) {
    throw Unsupported("BatchReader: not on CUDA yet");
}

TensorView on_device(const TensorView&, Device device, const ArgumentName&) {
    throw Unsupported("BatchReader: values in host memory with times on " + name(device));
}

}  // namespace robocache::loader_detail
