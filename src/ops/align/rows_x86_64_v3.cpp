// write_rows for x86-64 with AVX2, FMA and F16C; CMake compiles this file with -mavx2 -mfma -mf16c.
#include "ops/align/rows_impl.hpp"

namespace robocache::align_detail {

void write_rows_x86_64_v3(const RowJob& job) {
    write_any(job);
}

}  // namespace robocache::align_detail
