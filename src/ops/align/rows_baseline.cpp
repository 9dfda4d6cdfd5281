// write_rows for the compiler's own target: any x86-64, aarch64, …
#include "ops/align/rows_impl.hpp"

namespace robocache::align_detail {

void write_rows_baseline(const RowJob& job) {
    write_any(job);
}

}  // namespace robocache::align_detail
