// The CPU kernels of voxelize, included by one source file per instruction set.
//
// Every function, here and in the two files included below, lives in an unnamed namespace and is free of library
// templates: code compiled for a newer instruction set must never be merged by the linker with the baseline's.
#pragma once

#include "ops/voxelize/cpu/keys_impl.hpp"
#include "ops/voxelize/cpu/rows_impl.hpp"

namespace robocache::voxelize_detail {
namespace {

template <class Word>
constexpr CpuKernels<Word> kernels{&keys_of_points<Word>,
                                   &keys_of_pixels<Word, std::uint16_t>,
                                   &keys_of_pixels<Word, float>,
                                   &bounds_of_points,
                                   &add<Word>,
                                   &keep_extremes<Word>,
                                   &keep_magnitudes<Word>,
                                   &add_fixed<Word>,
                                   &finish_sums<Word>,
                                   &finish_extremes<Word>,
                                   &finish_fixed<Word>};

}  // namespace
}  // namespace robocache::voxelize_detail
