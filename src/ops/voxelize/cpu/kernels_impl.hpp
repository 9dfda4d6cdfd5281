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
constexpr CpuKernels<Word> all_kernels() {
    CpuKernels<Word> made{&keys_of_points<Word>,
                          &keys_of_pixels<Word, std::uint16_t>,
                          &keys_of_pixels<Word, float>,
                          &bounds_of_points,
                          {}};
    for (int i = 0; i < num_sums_kinds; ++i) {
        with_sums(static_cast<Sums>(i), [&](auto tag) { made.rounds[i] = rounds_of<decltype(tag)::sums, Word>; });
    }
    return made;
}

template <class Word>
constexpr CpuKernels<Word> kernels = all_kernels<Word>();

}  // namespace
}  // namespace robocache::voxelize_detail
