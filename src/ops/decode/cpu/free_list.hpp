// Objects that no part of a parallel call uses at the moment.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace robocache::decode_detail {

/// At most as many objects are made as parts run at the same time, so that memory and tables serve all parts of a call.
template <class T>
class FreeList {
public:
    /// The object goes back when the lease ends.
    class Lease {
    public:
        Lease(FreeList& list, std::unique_ptr<T> object) : list_(list), object_(std::move(object)) {}
        ~Lease() {
            const std::scoped_lock lock(list_.mutex_);
            list_.free_.push_back(std::move(object_));
        }
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;
        T& operator*() const { return *object_; }
        T* operator->() const { return object_.get(); }

    private:
        FreeList& list_;
        std::unique_ptr<T> object_;
    };

    /// A free object, or one made from `arguments`.
    template <class... Arguments>
    [[nodiscard]] Lease take(Arguments&... arguments) {
        std::unique_ptr<T> object;
        {
            const std::scoped_lock lock(mutex_);
            if (free_.empty()) free_.reserve(++num_made_);  // so that an object goes back without an allocation
            if (!free_.empty()) {
                object = std::move(free_.back());
                free_.pop_back();
            }
        }
        if (object == nullptr) object = std::make_unique<T>(arguments...);
        return Lease(*this, std::move(object));
    }

private:
    std::mutex mutex_;
    std::size_t num_made_ = 0;
    std::vector<std::unique_ptr<T>> free_;
};

}  // namespace robocache::decode_detail
