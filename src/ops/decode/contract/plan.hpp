// What a validated call of decode looks like: plain numbers and pointers, ready for any backend.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/decode/contract/finish.hpp"
#include "ops/decode/contract/geometry.hpp"
#include "ops/decode/contract/record.hpp"
#include "robocache/decode.hpp"

namespace robocache::decode_detail {

/// One picture of a batch.
struct PictureJob {
    std::int64_t row = 0;  // in the index
    Box box{};             // pixels of the picture; never empty
    bool flip = false;
    Factors factors{1, 1, 1};
};

/// What all pictures of a call have in common. (out_height, out_width) is the size of every result.
struct Style {
    std::int32_t out_height = 0;
    std::int32_t out_width = 0;
    bool is_area = false;
    bool is_chw = false;
    bool has_factors = false;
    std::int32_t channels = 3;
    DType dtype = DType::u8;
    Scaling scaling{};
};

struct CudaSchedule;  // cuda/schedule.hpp

struct Plan {
    Device device;
    const std::uint8_t* bytes = nullptr;
    std::int64_t num_bytes = 0;
    const std::int64_t* offsets = nullptr;  // num_pictures + 1
    std::int64_t num_pictures = 0;
    IndexView index{};         // on the host
    IndexView device_index{};  // CUDA
    std::vector<PictureJob> jobs;
    Style style;
    std::shared_ptr<const CudaSchedule> schedule;  // CUDA
};

/// What run() adds to a plan.
struct Target {
    void* out = nullptr;
    Workspace workspace;
};

}  // namespace robocache::decode_detail

namespace robocache {

struct DecodePlan::State {
    decode_detail::Plan plan;
    TensorView output;
    std::string_view op;
    std::int64_t workspace_bytes = 0;
};

namespace decode_detail {

// ---- contract.cpp: all validation. Reads the index and no tensor data
// ------------------------------------------------

void make_plan(DecodePlan::State& state, const PicturesView& pictures, const DecodeOptions& options);
[[nodiscard]] Target bind(const DecodePlan::State& state, const TensorView& output, Workspace workspace);

// ---- backends: a missing one is a link error ------------------------------------------------------------------------

void decode_cpu(const Plan& plan, const Target& target, std::string_view op);

#ifdef ROBOCACHE_HAS_CUDA
/// Makes plan.schedule; the bytes of workspace.
[[nodiscard]] std::int64_t plan_decode_cuda(Plan& plan);
void decode_cuda(const Plan& plan, const Target& target, CudaQueue queue);
#endif

}  // namespace decode_detail
}  // namespace robocache
