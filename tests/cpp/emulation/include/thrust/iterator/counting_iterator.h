// The numbers from a first one on, for the emulated GPU.
#pragma once

namespace thrust {

template <class T>
struct counting_iterator {
    T first;
    template <class Index>
    T operator[](Index i) const {
        return static_cast<T>(first + static_cast<T>(i));
    }
};

template <class T>
counting_iterator<T> make_counting_iterator(T first) {
    return {first};
}

}  // namespace thrust
