// PictureIndex: its bytes, and what makes them valid.
#include "ops/decode/jpeg/index.hpp"

#include <cstring>
#include <string>

#include "ops/decode/contract/geometry.hpp"
#include "ops/decode/contract/yuv.hpp"
#include "robocache/errors.hpp"

namespace robocache {
namespace decode_detail {
namespace {

IndexHead head_of(std::span<const std::uint8_t> bytes) {
    IndexHead head{};
    std::memcpy(&head, bytes.data(), sizeof head);
    return head;
}

/// Throws FormatError where something in an index would lead a decoder outside of it.
class IndexCheck {
public:
    IndexCheck(std::span<const std::uint8_t> bytes, std::string_view op) : bytes_(bytes), op_(op) {}

    void run() const {
        if (bytes_.size() < sizeof(IndexHead)) refuse("have at least 64 bytes", std::to_string(bytes_.size()));
        const IndexHead head = head_of(bytes_);
        if (head.magic != index_magic) refuse("begin with RCPI", std::to_string(head.magic));
        if (head.version != index_version) {
            refuse("have version " + std::to_string(index_version), std::to_string(head.version));
        }
        // Sections cannot have more items than the index has bytes, so that no product overflows.
        for (const std::uint64_t count :
             {head.num_pictures, head.num_sets, head.num_quantization, head.num_huffman_bytes, head.num_entries}) {
            if (count > bytes_.size()) refuse("have room for its sections", std::to_string(count) + " items");
        }
        const IndexView view = view_of(head, bytes_.data());
        if (head.size_bytes != bytes_.size() || view.end != bytes_.size()) {
            refuse("have " + std::to_string(view.end) + " bytes", std::to_string(bytes_.size()));
        }
        for (std::uint64_t i = 0; i < head.num_sets; ++i) check_set(view, static_cast<std::uint32_t>(i));
        for (std::uint64_t i = 0; i < head.num_pictures; ++i) check_picture(view, i);
    }

private:
    [[noreturn]] void refuse(const std::string& rule, const std::string& given) const {
        throw FormatError(std::string(op_) + ": the index must " + rule + ", got " + given);
    }

    void check_set(const IndexView& view, std::uint32_t i) const {
        const TableSet& set = view.set(i);
        for (int c = 0; c < max_components; ++c) {
            const bool is_valid = set.quantization[c] < view.num_quantization &&
                                  set.dc[c] + std::uint64_t{max_code_bits_} <= view.num_huffman_bytes &&
                                  set.ac[c] + std::uint64_t{max_code_bits_} <= view.num_huffman_bytes;
            if (!is_valid) refuse("refer to tables that it has", "others in set " + std::to_string(i));
        }
    }

    void check_picture(const IndexView& view, std::uint64_t i) const {
        const PictureRecord& p = view.record(static_cast<std::int64_t>(i));
        bool is_valid =
            p.width > 0 && p.width < 65536 && p.height > 0 && p.height < 65536 && p.codec <= Codec::yuv420 &&
            p.color <= ColorSpace::rgb &&
            (p.num_components == 1 || p.num_components == 3 || (p.num_components == 4 && p.codec == Codec::pixels)) &&
            (p.num_components == 1) == (p.color == ColorSpace::gray);
        if (is_valid && p.codec == Codec::pixels) {
            is_valid = std::int64_t{p.width} * p.height * p.num_components == p.num_bytes;
        } else if (is_valid && p.codec == Codec::yuv420) {
            is_valid = p.color == ColorSpace::rgb && p.yuv < num_yuv && YuvLayout(p.width, p.height).end == p.num_bytes;
        } else if (is_valid) {
            is_valid = has_valid_sampling(p) && p.table_set < view.num_sets && p.every > 0 &&
                       p.scan_begin <= p.num_bytes && p.first_entry <= view.num_entries &&
                       p.num_entries <= view.num_entries - p.first_entry;
        }
        if (is_valid && p.codec == Codec::jpeg) {
            const Geometry geometry = geometry_of(p);
            const std::uint64_t num_mcus = std::uint64_t(geometry.mcus_x) * std::uint64_t(geometry.mcus_y);
            is_valid = p.num_entries == (num_mcus + p.every - 1) / p.every;
        }
        if (!is_valid) refuse("have valid records", "an invalid one of picture " + std::to_string(i));
        if (p.codec == Codec::jpeg) check_first_entry(view, i, p.first_entry);
    }

    /// A scan begins with its first bit and without predictors. Nothing before it could show that they are wrong.
    void check_first_entry(const IndexView& view, std::uint64_t picture, std::uint64_t entry) const {
        const Predictors& p = view.predictors(entry);
        if (view.bits(entry) != 0 || p.dc[0] != 0 || p.dc[1] != 0 || p.dc[2] != 0) {
            refuse("begin each picture at bit 0 with predictors of 0", "others in picture " + std::to_string(picture));
        }
    }

    static bool has_valid_sampling(const PictureRecord& p) {
        int h_max = 0;
        int v_max = 0;
        int num_blocks = 0;
        for (int c = 0; c < p.num_components; ++c) {
            if (p.h[c] < 1 || p.h[c] > 4 || p.v[c] < 1 || p.v[c] > 4) return false;
            h_max = larger(h_max, p.h[c]);
            v_max = larger(v_max, p.v[c]);
            num_blocks += p.h[c] * p.v[c];
        }
        for (int c = 0; c < p.num_components; ++c) {
            if (h_max % p.h[c] != 0 || v_max % p.v[c] != 0) return false;
        }
        return num_blocks <= 10;
    }

    static constexpr int max_code_bits_ = 16;
    std::span<const std::uint8_t> bytes_;
    std::string_view op_;
};

}  // namespace

IndexView view_of(const PictureIndex& index) {
    return view_of(index, index.bytes().data());
}

IndexView view_of(const PictureIndex& index, const void* base) {
    const IndexHead head = index.bytes().empty() ? IndexHead{} : head_of(index.bytes());
    return view_of(head, static_cast<const unsigned char*>(base));
}

}  // namespace decode_detail

using namespace decode_detail;

PictureIndex PictureIndex::from_bytes(std::span<const std::uint8_t> bytes, std::string_view op) {
    // Checked after they are copied: what is checked is what is used, and it is aligned.
    PictureIndex index;
    if (bytes.size() % 8 != 0) {
        throw FormatError(std::string(op) + ": the index must have a multiple of 8 bytes, got " +
                          std::to_string(bytes.size()));
    }
    index.words_.resize(bytes.size() / 8);
    if (!bytes.empty()) std::memcpy(index.words_.data(), bytes.data(), bytes.size());
    IndexCheck(index.bytes(), op).run();
    return index;
}

std::span<const std::uint8_t> PictureIndex::bytes() const noexcept {
    return {reinterpret_cast<const std::uint8_t*>(words_.data()), words_.size() * 8};
}

std::int64_t PictureIndex::num_pictures() const noexcept {
    return words_.empty() ? 0 : static_cast<std::int64_t>(head_of(bytes()).num_pictures);
}

std::int64_t PictureIndex::num_entry_points() const noexcept {
    return words_.empty() ? 0 : static_cast<std::int64_t>(head_of(bytes()).num_entries);
}

namespace {
const PictureRecord& record_at(const PictureIndex& index, std::int64_t picture) {
    if (picture < 0 || picture >= index.num_pictures()) {
        throw InvalidArgument("PictureIndex: picture must be from 0 to " + std::to_string(index.num_pictures() - 1) +
                              ", got " + std::to_string(picture));
    }
    return view_of(index).record(picture);
}
}  // namespace

std::int32_t PictureIndex::width(std::int64_t picture) const {
    return record_at(*this, picture).width;
}

std::int32_t PictureIndex::height(std::int64_t picture) const {
    return record_at(*this, picture).height;
}

std::int32_t PictureIndex::channels(std::int64_t picture) const {
    return record_at(*this, picture).num_components;
}

}  // namespace robocache
