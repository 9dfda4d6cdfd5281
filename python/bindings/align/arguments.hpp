// What Python passes to align, as the views and options of C++.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <span>
#include <vector>

#include "arrays/tensor_reader.hpp"
#include "robocache/align.hpp"

namespace robocache::python {

/// The arguments of one call, with everything that keeps them alive.
class AlignArguments {
public:
    /// names: ("op", "query name", (("values name", "times name", bare), ...)). Only a query called "times" may be an
    /// anchor and deltas instead.
    /// streams: the fields of Stream, as tuples. query: (times, episode, anchor, deltas). queue: see TensorReader.
    AlignArguments(const nanobind::tuple& names, const nanobind::sequence& streams, const nanobind::tuple& query,
                   nanobind::handle queue);

    TensorView tensor(nanobind::handle object, const ArgumentName& name, Access access = Access::read) {
        return reader_.read(object, {names_.op, name}, access);
    }
    std::optional<TensorView> optional_tensor(nanobind::handle object, const ArgumentName& name,
                                              Access access = Access::read) {
        if (object.is_none()) return std::nullopt;
        return tensor(object, name, access);
    }

    [[nodiscard]] const AlignNames& names() const { return names_; }
    [[nodiscard]] std::span<const StreamView> streams() const { return streams_; }
    [[nodiscard]] const Query& query() const { return query_; }
    [[nodiscard]] TensorReader& reader() { return reader_; }
    [[nodiscard]] const TensorReader& reader() const { return reader_; }

private:
    void add_stream(const nanobind::tuple& fields);
    void read_outside(StreamView& view, nanobind::handle outside, const ArgumentName& name) const;
    void read_method(StreamView& view, nanobind::handle method, const ArgumentName& name);

    std::vector<StreamNames> stream_names_;
    AlignNames names_;
    TensorReader reader_;
    std::vector<StreamView> streams_;
    std::vector<std::vector<ChannelRange>> ranges_;  // what the StreamViews' ranges point into
    Query query_;
};

}  // namespace robocache::python
