// Parts of a workspace, one after the other.
#pragma once

#include <cstdint>

namespace robocache {

/// Divides a workspace into aligned parts, or only counts their bytes (data null).
class Cutter {
public:
    explicit Cutter(void* data) : data_(static_cast<char*>(data)) {}

    template <class T>
    T* take(std::int64_t count) {
        T* at = data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + used_);
        used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 255) / 256 * 256;
        return at;
    }
    [[nodiscard]] std::int64_t used() const { return used_; }

private:
    char* data_;
    std::int64_t used_ = 0;
};

}  // namespace robocache
