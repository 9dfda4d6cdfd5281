// Views, names and texts.
#include "robocache/tensor.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "robocache/errors.hpp"
#include "robocache/system.hpp"

namespace robocache {
namespace {

TEST(Tensor, AContiguousViewHasRowMajorStrides) {
    std::vector<float> data(24);
    const TensorView view(data.data(), DType::f32, {2, 3, 4});
    EXPECT_EQ(view.rank, 3);
    EXPECT_EQ(view.num_elements(), 24);
    EXPECT_EQ(view.strides[0], 12);
    EXPECT_EQ(view.strides[1], 4);
    EXPECT_EQ(view.strides[2], 1);
    EXPECT_EQ(shape_text(view), "(2, 3, 4)");
}

TEST(Tensor, ASliceIsTheSameMemory) {
    std::vector<double> data(24);
    const TensorView view(data.data(), DType::f64, {2, 3, 4});
    const TensorView columns = view.slice(2, 1, 3);
    EXPECT_EQ(columns.data, data.data() + 1);
    EXPECT_EQ(shape_text(columns), "(2, 3, 2)");
    EXPECT_EQ(columns.strides[1], 4);
    EXPECT_THROW((void)view.slice(2, 1, 5), InvalidArgument);
    EXPECT_THROW((void)view.slice(3, 0, 0), InvalidArgument);
}

TEST(Tensor, NamesAreThoseOfNumpy) {
    EXPECT_STREQ(name(DType::bf16), "bfloat16");
    EXPECT_STREQ(name(DType::boolean), "bool");
    EXPECT_EQ(size_bytes(DType::u16), 2);
    EXPECT_TRUE(is_floating(DType::f16));
    EXPECT_FALSE(is_floating(DType::i64));
    EXPECT_EQ(name(Device{DeviceType::cuda, 3}), "cuda:3");
    EXPECT_EQ(name(Device{DeviceType::cuda_host, 0}), "cpu");
    EXPECT_EQ(shape_text(TensorView(static_cast<void*>(nullptr), DType::f32, {5})), "(5,)");
    EXPECT_EQ(shape_text(TensorView(static_cast<void*>(nullptr), DType::f32, {})), "()");
}

TEST(System, AMissingGpuIsNotAnError) {
    const CudaStatus status = cuda_status();
    EXPECT_EQ(status.available, !status.devices.empty());
    EXPECT_EQ(status.available, status.reason.empty());
}

}  // namespace
}  // namespace robocache
