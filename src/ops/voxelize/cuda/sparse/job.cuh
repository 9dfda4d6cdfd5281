// The list of occupied cells: one description of a call for all its kernels.
#pragma once

#include "core/cuda/for_each.cuh"
#include "ops/voxelize/contract/rounds.hpp"
#include "ops/voxelize/cuda/places.cuh"

namespace robocache::voxelize_detail {

constexpr std::uint32_t no_row = 0xffffffffU;

/// The parts of the workspace.
struct SparseSpace {
    // by bits
    std::uint32_t* bits = nullptr;
    std::uint32_t* before = nullptr;  // of each word: bits before it
    // by sorting, and for the first points
    std::uint64_t* keys = nullptr;
    std::uint64_t* sorted_keys = nullptr;
    std::uint32_t* points = nullptr;
    std::uint32_t* sorted_points = nullptr;
    std::uint32_t* ranks = nullptr;   // of sorted keys: cells up to it
    std::uint32_t* starts = nullptr;  // of each row: points before it
    // both
    std::uint32_t* rows = nullptr;    // of each point
    std::uint32_t* counts = nullptr;  // of each row
    std::uint32_t* words[max_words] = {};
    std::int64_t* numbers[max_sums] = {};
    std::int64_t to_clear = 0;  // bytes from counts on
    char* scratch = nullptr;
    std::size_t scratch_bytes = 0;
};

struct SparseJob {
    SparsePlan plan;
    SparseSpace space;
    Places places;
    std::int64_t num_words;  // of bits; 0: by sorting
    std::int64_t num_rows;   // that may be written
    std::uint64_t no_key;
    Sums sums;
    bool is_small;  // 32 bits number the cells of all clouds
};

}  // namespace robocache::voxelize_detail
