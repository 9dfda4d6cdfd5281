// The cache for Python: arrays to rows and back, nothing else.
#include "robocache/cache.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/memory.hpp"
#include "arrays/tensor_reader.hpp"
#include "bindings.hpp"
#include "cache/byte_counts.hpp"
#include "cache/files/mapped_file.hpp"
#include "cache/format/crc32c.hpp"
#include "cache/reader.hpp"
#include "core/contract.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace robocache::python {
namespace {

using Array = nb::ndarray<nb::numpy, nb::ro>;

void count_bytes(const nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& rows,
                 const nb::ndarray<std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>& counts) {
    if (counts.shape(0) != rows.shape(1) || counts.shape(1) != 256) {
        fail("count_bytes", "counts", "have 256 numbers for each channel of the rows", "another shape");
    }
    const Unlocked unlocked;
    cache_detail::count_bytes({rows.data(), rows.size()}, static_cast<std::int64_t>(rows.shape(1)),
                              {counts.data(), counts.size()});
}

/// The rows of one stream as Python gives them.
struct GivenCacheRows {
    nb::object values, times, splits;  // splits: or None
    nb::object index;                  // of encoded pictures, or None
    bool is_bfloat16 = false;          // values are the bits of bfloat16, in uint16: NumPy has no name for it
};

/// `rows[s]` is None where the episode has no rows of the stream.
void add(CacheWriter& writer, std::int64_t index, const std::vector<std::optional<GivenCacheRows>>& rows,
         std::string_view json) {
    constexpr const char* op = "CacheWriter::add";
    TensorReader reader;
    std::vector<CacheRows> views;
    for (const std::optional<GivenCacheRows>& given : rows) {
        CacheRows& view = views.emplace_back();
        if (!given) continue;
        view.values = reader.read(given->values, {op, "values"});
        if (given->is_bfloat16 && view.values.dtype == DType::u16) view.values.dtype = DType::bf16;
        view.times = reader.read(given->times, {op, "times"});
        if (!given->splits.is_none()) view.splits = reader.read(given->splits, {op, "splits"});
        if (!given->index.is_none()) view.index = reader.read(given->index, {op, "index"});
    }
    const Unlocked unlocked;
    writer.add(index, views, json);
}

void bind_structs(nb::module_& m) {
    nb::class_<CacheStream>(m, "CacheStream")
        .def(
            "__init__",
            [](CacheStream* self, const std::string& name, std::string_view dtype, std::vector<std::int64_t> shape,
               const std::string& kind, bool ragged, const std::string& details, const std::string& codec) {
                const DType read = dtype_from_name(dtype, {"CacheWriter", "dtype"});
                new (self) CacheStream{name, read, std::move(shape), kind, ragged, details, codec};
            },
            nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("kind"), nb::arg("ragged"), nb::arg("details"),
            nb::arg("codec") = "")
        .def_ro("name", &CacheStream::name)
        .def_prop_ro("dtype", [](const CacheStream& self) { return name(self.dtype); })
        .def_ro("shape", &CacheStream::shape)
        .def_ro("kind", &CacheStream::kind)
        .def_ro("ragged", &CacheStream::ragged)
        .def_ro("details", &CacheStream::details)
        .def_ro("codec", &CacheStream::codec);
    nb::class_<GivenCacheRows>(m, "CacheRows")
        .def(
            "__init__",
            [](GivenCacheRows* self, nb::object values, nb::object times, nb::object splits, bool is_bfloat16,
               nb::object index) {
                new (self) GivenCacheRows{std::move(values), std::move(times), std::move(splits), std::move(index),
                                          is_bfloat16};
            },
            nb::arg("values"), nb::arg("times"), nb::arg("splits").none() = nb::none(), nb::arg("is_bfloat16") = false,
            nb::arg("index").none() = nb::none());
}

/// Keeps a mapping for the arrays over it.
nb::capsule owner_of(const CacheRows& rows) {
    using Owner = std::shared_ptr<const void>;
    return {new Owner(rows.owner), [](void* owner) noexcept { delete static_cast<Owner*>(owner); }};
}

/// A NumPy array over the mapping, which it keeps alive. bfloat16 is uint16: NumPy has no name for it.
Array array_of(const TensorView& view, nb::handle owner) {
    std::size_t shape[TensorView::max_rank] = {};
    for (int d = 0; d < view.rank; ++d) shape[d] = static_cast<std::size_t>(view.shape[d]);
    const DType dtype = view.dtype == DType::bf16 ? DType::u16 : view.dtype;
    return {view.data, static_cast<std::size_t>(view.rank), shape, owner, nullptr, dlpack_dtype(dtype)};
}

nb::tuple arrays_of(const CacheRows& rows) {
    const nb::capsule owner = owner_of(rows);
    const auto optional = [&](const TensorView& view) {
        return view.rank == 0 ? nb::object(nb::none()) : nb::cast(array_of(view, owner));
    };
    return nb::make_tuple(array_of(rows.values, owner), array_of(rows.times, owner), optional(rows.splits),
                          optional(rows.offsets));
}

void bind_reader(nb::module_& m) {
    nb::class_<CacheReader>(m, "CacheReader")
        .def(
            "__init__",
            [](CacheReader* self, const std::string& folder) {
                const Unlocked unlocked;
                new (self) CacheReader(std::filesystem::path(folder));
            },
            nb::arg("folder"))
        .def_prop_ro("generation", &CacheReader::generation)
        .def_prop_ro("fingerprint", &CacheReader::fingerprint)
        .def_prop_ro("checksum", &CacheReader::checksum)
        .def_prop_ro("metadata", &CacheReader::metadata)
        .def_prop_ro("streams",
                     [](const CacheReader& self) {
                         const auto& streams = self.streams();
                         return std::vector<CacheStream>(streams.begin(), streams.end());
                     })
        .def_prop_ro("num_episodes", &CacheReader::num_episodes)
        .def_prop_ro("num_shards", &CacheReader::num_shards)
        .def_prop_ro("size_bytes", &CacheReader::size_bytes)
        .def_prop_ro("files",
                     [](const CacheReader& self) {
                         std::vector<std::string> names;
                         for (const auto& path : self.files()) names.push_back(path.string());
                         return names;
                     })
        .def(
            "rows",
            [](const CacheReader& self, std::int64_t episode, std::size_t stream) {
                return arrays_of(self.rows(episode, stream));
            },
            nb::arg("episode"), nb::arg("stream"))
        .def(
            "index",
            [](const CacheReader& self, std::int64_t episode, std::size_t stream) {
                const CacheRows rows = self.rows(episode, stream);
                if (rows.index.rank == 0) throw InvalidArgument("CacheReader::index: the stream is not encoded");
                return array_of(rows.index, owner_of(rows));
            },
            nb::arg("episode"), nb::arg("stream"))
        .def(
            "shard_rows",
            [](const CacheReader& self, std::int64_t shard, std::size_t stream) {
                return arrays_of(self.shard_rows(shard, stream));
            },
            nb::arg("shard"), nb::arg("stream"))
        .def(
            "copy_values",
            [](const CacheReader& self, std::int64_t shard, std::size_t stream, std::int64_t begin, std::int64_t end,
               std::uintptr_t into,
               bool check) { self.copy_values(shard, stream, begin, end, reinterpret_cast<void*>(into), check); },
            nb::arg("shard"), nb::arg("stream"), nb::arg("begin"), nb::arg("end"), nb::arg("into"), nb::arg("check"),
            nb::call_guard<Unlocked>())
        .def("check_rows", &CacheReader::check_rows, nb::arg("episode"), nb::arg("stream"), nb::call_guard<Unlocked>())
        .def("check_times", &CacheReader::check_times, nb::arg("shard"), nb::arg("stream"), nb::call_guard<Unlocked>())
        .def("stays_mapped", &CacheReader::stays_mapped, nb::arg("shard"))
        .def("require_readable", &CacheReader::require_readable)
        .def("require_whole", nb::overload_cast<>(&CacheReader::require_whole, nb::const_))
        .def("require_whole", nb::overload_cast<std::int64_t>(&CacheReader::require_whole, nb::const_),
             nb::arg("episode"))
        .def("first_episode", &CacheReader::first_episode, nb::arg("shard"))
        .def("episode_index", &CacheReader::episode_index, nb::arg("episode"))
        .def(
            "episode_json",
            [](const CacheReader& self, std::int64_t episode) {
                const std::string json = self.episode_json(episode);
                return nb::bytes(json.data(), json.size());
            },
            nb::arg("episode"))
        .def("verify", &CacheReader::verify, nb::call_guard<Unlocked>());
}

}  // namespace

void bind_cache(nb::module_& m) {
    bind_structs(m);
    bind_reader(m);
    nb::class_<cache_detail::MappingGuard>(m, "MappingGuard",
                                           "While it lives, reading a mapped page that is gone is no signal.")
        .def(nb::init<>());
    m.def(
        "remove_leftovers", [](const std::string& folder) { remove_leftovers(folder); }, nb::arg("folder"),
        nb::call_guard<Unlocked>());
    m.def("set_max_mapped_shards", &cache_detail::set_max_mapped_shards, nb::arg("limit"));
    m.def(
        "crc32c", [](const nb::bytes& data) { return cache_detail::crc32c({data.c_str(), data.size()}); },
        nb::arg("data"), "CRC32C (Castagnoli) of bytes.");
    m.def("count_bytes", &count_bytes, nb::arg("rows"), nb::arg("counts"),
          "Adds to counts (channels, 256) for rows (n, channels).");
    nb::class_<CacheWriter>(m, "CacheWriter")
        .def(
            "__init__",
            [](CacheWriter* self, const std::string& folder, std::vector<CacheStream> streams, std::int64_t shard_bytes,
               const std::string& fingerprint, bool resume) {
                const Unlocked unlocked;
                new (self) CacheWriter(folder, std::move(streams), {shard_bytes, fingerprint, resume, nullptr});
            },
            nb::arg("folder"), nb::arg("streams"), nb::arg("shard_bytes"), nb::arg("fingerprint"), nb::arg("resume"))
        .def_prop_ro("generation", &CacheWriter::generation)
        .def_prop_ro("num_episodes", &CacheWriter::num_episodes)
        .def_prop_ro("notes", &CacheWriter::notes)
        .def("finished", &CacheWriter::finished)
        .def("add", &add, nb::arg("index"), nb::arg("rows"), nb::arg("json"))
        .def(
            "attach",
            [](CacheWriter& self, std::string_view stem, std::string_view extension, const nb::bytes& bytes) {
                self.attach(stem, extension, {bytes.c_str(), bytes.size()});
            },
            nb::arg("stem"), nb::arg("extension"), nb::arg("bytes"))
        .def("set_details", &CacheWriter::set_details, nb::arg("stream"), nb::arg("json"))
        .def("commit", &CacheWriter::commit, nb::arg("metadata"), nb::call_guard<Unlocked>());
}

}  // namespace robocache::python
