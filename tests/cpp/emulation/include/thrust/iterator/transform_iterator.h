// A function of the elements of another iterator, for the emulated GPU.
#pragma once

namespace thrust {

template <class Function, class Iterator>
struct transform_iterator {
    Iterator from;
    Function function;
    template <class Index>
    auto operator[](Index i) const {
        return function(from[i]);
    }
};

template <class Iterator, class Function>
transform_iterator<Function, Iterator> make_transform_iterator(Iterator from, Function function) {
    return {from, function};
}

}  // namespace thrust
